# For CPUs: docker build -t fastsft . && docker run fastsft demo
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ ninja-build && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/fastsft && /opt/fastsft/bin/pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu 'torch==2.11.*'
WORKDIR /source
COPY . .
RUN /opt/fastsft/bin/pip install --no-cache-dir .

FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/fastsft /opt/fastsft
RUN useradd --create-home --uid 1000 fastsft && install -d -o fastsft /data
ENV PATH=/opt/fastsft/bin:$PATH
USER 1000
WORKDIR /data
ENTRYPOINT ["fastsft"]
