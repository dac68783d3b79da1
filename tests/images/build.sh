#!/usr/bin/env bash
# Makes the images that the docker tests need, on a machine that reaches a Debian mirror and a Python package index but
# no image registry. Does nothing for images that are there.
#
#   tests/images/build.sh [-r] [-s]
#
#   -r  rebuild the images of the sample tasks
#   -s  make the stand-ins even if nothing lacks them
#
# 1. hermes-test/base:local      Debian by debootstrap (root), with Python, git and curl; mirror and proxy are apt's own.
# 2. hermes-test/debian:local    the base with uv and the pinned pytest that Terminal-Bench verifiers start by uvx, and a
#    hermes-test/python:local    curl that answers their request for the uv installer; Python in /usr/local in the second.
#    Each FROM of the sample tasks that this machine lacks (ubuntu, debian, python:3.13) becomes a tag of one of these.
# 3. hermes-test/task-NAME:local  every task in tests/data/harbor, so that a build during a test comes from the cache.
#
# EXTRA_CA_BUNDLE (default: PIP_CERT, else SSL_CERT_FILE) is a PEM file that the stand-ins trust, for machines behind a
# proxy with its own certificate; empty: none.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tasks=$here/../data/harbor
suite=${HERMES_TEST_SUITE:-trixie} uv=0.9.5 pytest=8.4.1 ctrf=0.3.5
base=hermes-test/base:local debian=hermes-test/debian:local python=hermes-test/python:local
ca_bundle=${EXTRA_CA_BUNDLE-${PIP_CERT:-${SSL_CERT_FILE:-}}}
rebuild=0 standins=0
while getopts 'rsh' option; do
  case $option in
    r) rebuild=1 ;;
    s) standins=1 ;;
    *) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
  esac
done
export DOCKER_BUILDKIT=${DOCKER_BUILDKIT:-0} # the classic builder needs no plugin

say() { printf 'build.sh: %s\n' "$*" >&2; }
have() { docker image inspect "$1" >/dev/null 2>&1; }
docker version >/dev/null || { say 'no Docker daemon answers'; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

make_base() {
  command -v debootstrap >/dev/null || { say 'debootstrap is missing: install it'; exit 1; }
  local began=$SECONDS mirror proxy=''
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -m1 '/debian/*$' || true)
  eval "$(apt-config shell proxy Acquire::http::Proxy 2>/dev/null || true)"
  http_proxy=${proxy:-${http_proxy:-}} debootstrap --variant=minbase \
    --include=ca-certificates,curl,git,python3,python3-venv "$suite" "$work/root" ${mirror:+"$mirror"} \
    >"$work/log" 2>&1 || { tail -5 "$work/log" >&2; exit 1; }
  rm -rf "$work"/root/var/cache/apt/archives/*.deb "$work"/root/var/lib/apt/lists/*
  tar -C "$work/root" -c . | docker import -c 'CMD ["bash"]' - "$base" >/dev/null
  rm -rf "$work/root"
  say "made $base in $((SECONDS - began)) s"
}

make_standins() {
  local began=$SECONDS context=$work/standin environment='' target
  mkdir -p "$context"
  : >"$context/extra-ca.pem"
  if [[ -n $ca_bundle && -s $ca_bundle ]]; then
    cp "$ca_bundle" "$context/extra-ca.pem"
    for target in SSL_CERT_FILE PIP_CERT REQUESTS_CA_BUNDLE CURL_CA_BUNDLE GIT_SSL_CAINFO; do
      environment+="ENV $target=/etc/ssl/extra-ca.pem"$'\n'
    done
  fi
  cat >"$context/curl" <<'CURL'
#!/bin/sh
# Answers the request for uv's installer with the uv in this image; every other call is the real curl's.
for word in "$@"; do
  case $word in
    *://*/uv/*install.sh)
      cat <<'INSTALL'
set -e
mkdir -p "$HOME/.local/bin"
ln -sf /opt/verifier/bin/uv /opt/verifier/bin/uvx "$HOME/.local/bin/"
echo 'export PATH="$HOME/.local/bin:$PATH"' >"$HOME/.local/bin/env"
INSTALL
      exit 0 ;;
  esac
done
exec /usr/bin/curl "$@"
CURL
  chmod 755 "$context/curl"
  cat >"$context/Dockerfile" <<DOCKERFILE
FROM $base AS debian
COPY extra-ca.pem /etc/ssl/extra-ca.pem
${environment}ENV UV_PYTHON_DOWNLOADS=never
RUN python3 -m venv /opt/verifier && /opt/verifier/bin/pip install --no-cache-dir -q uv==$uv \\
 && /opt/verifier/bin/uvx -p 3.13 -w pytest==$pytest -w pytest-json-ctrf==$ctrf pytest --version
COPY curl /usr/local/bin/curl
FROM debian AS python
RUN python3 -m venv /usr/local && ln -sf pip3 /usr/local/bin/pip
DOCKERFILE
  for target in debian python; do
    docker build --target "$target" -t "hermes-test/$target:local" "$context" >"$work/log" 2>&1 ||
      { tail -20 "$work/log" >&2; exit 1; }
  done
  say "made $debian and $python in $((SECONDS - began)) s"
}

have "$base" || make_base

mapfile -t wanted < <(awk 'toupper($1) == "FROM" { print $2 }' "$tasks"/*/environment/Dockerfile | sort -u)
lacking=()
for image in "${wanted[@]}"; do have "$image" || lacking+=("$image"); done
if ((${#lacking[@]} || standins)); then
  have "$debian" && have "$python" || make_standins
fi
for image in ${lacking[@]+"${lacking[@]}"}; do
  case $image in
    ubuntu:* | debian:*) docker tag "$debian" "$image" ;;
    python:3.13*) docker tag "$python" "$image" ;;
    *) say "no stand-in for $image"; exit 3 ;;
  esac
  say "$image is a stand-in"
done

for folder in "$tasks"/*/; do
  name=$(basename "$folder") tag=hermes-test/task-$(basename "$folder"):local
  if ((!rebuild)) && have "$tag"; then continue; fi
  began=$SECONDS
  docker build -t "$tag" "$folder/environment" >"$work/log" 2>&1 </dev/null || { tail -20 "$work/log" >&2; exit 1; }
  say "made $tag in $((SECONDS - began)) s"
done
