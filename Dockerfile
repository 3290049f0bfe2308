# An image for `bert-jax launch gke run --image=REPOSITORY@sha256:…`, with bert-jax for TPUs:
#
#     docker build --tag REPOSITORY:TAG . && docker push REPOSITORY:TAG
#
# The push prints the digest. Processes run as a user without rights.
FROM python:3.12-slim-bookworm

COPY requirements/tpu.txt /tmp/tpu.txt
RUN pip install --no-cache-dir --require-hashes --requirement /tmp/tpu.txt

COPY . /tmp/bert-jax
RUN pip install --no-cache-dir --no-deps --no-build-isolation /tmp/bert-jax \
    && rm -r /tmp/bert-jax /tmp/tpu.txt \
    && useradd --create-home --uid 1000 trainer

USER trainer
WORKDIR /home/trainer
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["bert-jax"]
