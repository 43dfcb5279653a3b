# syntax=docker/dockerfile:1
# A server and a client from one file, each with what it needs and no more. Neither has torch, neither runs as root.
#   docker build --target server -t heatfhe-server .
#   docker build --target client -t heatfhe-client .
# On a GPU:  docker build --target server --build-arg EXTRAS=native,serve,cuda -t heatfhe-server .
# compose.yaml starts one server and two clients; scripts/image.py runs these steps without docker.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS wheel
WORKDIR /src
COPY pyproject.toml MANIFEST.in README.md LICENSE NOTICE ./
COPY src ./src
COPY requirements ./requirements
RUN python -m venv /opt/pip
RUN /opt/pip/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /dist /src

FROM wheel AS server-packages
ARG EXTRAS=native,serve
RUN python -m venv --without-pip /opt/heatfhe
RUN /opt/pip/bin/pip --python /opt/heatfhe/bin/python install --no-cache-dir -c /src/requirements/main.txt "$(ls /dist/heatfhe-*.whl)[${EXTRAS}]"

FROM wheel AS client-packages
RUN python -m venv --without-pip /opt/heatfhe
RUN /opt/pip/bin/pip --python /opt/heatfhe/bin/python install --no-cache-dir -c /src/requirements/main.txt "$(ls /dist/heatfhe-*.whl)[client]"

FROM python:${PYTHON}-slim AS server
COPY --from=server-packages /opt/heatfhe /opt/heatfhe
RUN install -d -o 10001 -g 10001 -m 0700 /data /inbox
ENV PATH=/opt/heatfhe/bin:$PATH HOME=/data NUMBA_CACHE_DIR=/data/.numba PYTHONUNBUFFERED=1
WORKDIR /data
USER 10001:10001
VOLUME /data
EXPOSE 8443
ENTRYPOINT ["heat"]
CMD ["serve", "--help"]

FROM python:${PYTHON}-slim AS client
COPY --from=client-packages /opt/heatfhe /opt/heatfhe
RUN install -d -o 10001 -g 10001 -m 0700 /keys /inbox
ENV PATH=/opt/heatfhe/bin:$PATH HOME=/keys NUMBA_CACHE_DIR=/keys/.numba PYTHONUNBUFFERED=1
WORKDIR /keys
USER 10001:10001
VOLUME /keys
ENTRYPOINT ["heat"]
CMD ["generate", "--help"]
