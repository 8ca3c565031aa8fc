# A server or a node of a federation: docs/operate.md says how to run them.
# A tag may get other bytes. To pin these:  --build-arg BASE=python@sha256:...  with the digest that
# docker buildx imagetools inspect python:3.12.12-slim-bookworm  prints.
ARG BASE=python:3.12.12-slim-bookworm
FROM ${BASE}

COPY . /src
RUN pip install --no-cache-dir -c /src/constraints.txt '/src[deploy]'

# Folders with keys are mounted here. Compiled kernels are kept in /tmp: nothing else of the image is written.
RUN useradd --uid 1000 --no-create-home fedgrec && install -d -o fedgrec -m 0700 /var/lib/fedgrec
ENV HOME=/tmp NUMBA_CACHE_DIR=/tmp/numba
USER fedgrec
WORKDIR /var/lib/fedgrec
ENTRYPOINT ["fedgrec"]
CMD ["federation", "--help"]
