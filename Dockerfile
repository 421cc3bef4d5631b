# The service, with kernels compiled for any processor of its kind.
FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE CHANGELOG.md CITATION.cff ./
COPY src src
ENV POLYAFOREST_CPU=portable POLYAFOREST_CACHE_DIR=/opt/kernels
RUN python -m venv /opt/polyaforest
RUN /opt/polyaforest/bin/pip install --no-cache-dir ".[service,redis,kafka,zstd,otlp,remote-write]"
RUN /opt/polyaforest/bin/polyaforest warmup

FROM python:3.13-slim
COPY --from=build /opt /opt
RUN useradd --uid 10001 --create-home polyaforest && install -d -o polyaforest /data /etc/polyaforest
COPY deploy/polyaforest.toml /etc/polyaforest/polyaforest.toml
ENV PATH=/opt/polyaforest/bin:$PATH POLYAFOREST_CPU=portable POLYAFOREST_CACHE_DIR=/opt/kernels
USER 10001
VOLUME /data
EXPOSE 8420
HEALTHCHECK --interval=30s --start-period=60s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8420/health', timeout=5)"]
ENTRYPOINT ["polyaforest"]
CMD ["serve", "/etc/polyaforest/polyaforest.toml", "--host", "0.0.0.0", "--data", "/data"]
