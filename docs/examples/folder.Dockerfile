# A small image without MPI and without pip: the folder alone, for the DaemonSet and the Job of kubernetes.yaml.
#   make dist DIST_ARGS='--form folder' && docker build -f docs/examples/folder.Dockerfile -t registry.example.com/egmctl:0.2.0 .
# `buildah bud` takes the same options as `docker build`.
# The driver's libraries come from the node, by the NVIDIA container toolkit. `docker buildx --platform` sets TARGETARCH.
FROM debian:13-slim
ARG TARGETARCH=amd64
ADD dist/egmctl-*-linux-*-cu13.tar.xz /opt/
RUN case "$TARGETARCH" in arm64) arch=aarch64 ;; *) arch=x86_64 ;; esac \
    && mv /opt/egmctl-*-linux-$arch-cu13 /opt/egmctl \
    && rm -rf /opt/egmctl-* \
    && ln -s /opt/egmctl/bin/egmctl /usr/local/bin/egmctl
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENTRYPOINT ["egmctl"]
