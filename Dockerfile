# A node of a Ray cluster, or a machine that runs Coterie:  docker build -t coterie .
FROM python:3.11-slim

RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libgomp1 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/coterie
COPY constraints.txt pyproject.toml hatch_build.py README.md LICENSE ./
COPY src ./src
# torch alone first, so that a change of the code does not load it again
RUN pip install --no-cache-dir -c constraints.txt torch \
    && pip install --no-cache-dir -c constraints.txt '.[ray]'

# nothing here needs to be root
RUN useradd --create-home coterie && mkdir -p /data /runs && chown coterie /data /runs
USER coterie
WORKDIR /runs
ENV COTERIE_DATA=/data RAY_USAGE_STATS_ENABLED=0

ENTRYPOINT []
CMD ["coterie", "doctor"]
