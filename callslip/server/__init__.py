"""The HTTP API and web page of `callslip serve`. Imported only by the command line; needs the extra `serve`."""
