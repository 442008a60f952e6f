"""The HTTP API and the page: `callslip serve`. Imported by the command line only; needs the extra `serve`."""
