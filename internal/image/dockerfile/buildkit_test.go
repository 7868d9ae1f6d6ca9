package dockerfile

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"

	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/files"
)

// features are Dockerfiles for the features in BuildKit's documentation. BASE is an image.
var features = []struct {
	name, text string
	args       map[string]string
	target     string
}{
	{name: "variables", text: `ARG TAG=latest
FROM BASE AS one
ARG TAG
ARG EMPTY
ARG DEFAULT=d-$TAG
ENV A=1 B="two words" C=${DEFAULT:+set} D='$A' PATH=/bin:/x
ENV E=$A$B F=${NONE:-none} G=${B#two}
LABEL l1=$A "l 2"='$A' l3="a\
b"
FROM one
ARG DEFAULT
WORKDIR /w/$A
WORKDIR sub
RUN echo "$TAG|$DEFAULT|$A|$B|$C|$D|$E|$F|$G|$PWD" >/out
`, args: map[string]string{"TAG": "given"}},
	{name: "configuration", text: `FROM BASE
MAINTAINER someone
EXPOSE 80 443/udp 10-12/tcp
VOLUME ["/v1", "/v2"]
VOLUME /v3
STOPSIGNAL SIGUSR1
HEALTHCHECK --interval=5s --timeout=3s --start-period=2s --start-interval=1s --retries=4 CMD test -e /ok
SHELL ["/bin/sh", "-ec"]
CMD echo "shell form"
ENTRYPOINT ["/bin/sh", "-c"]
USER app:staff
ONBUILD COPY . /src
ONBUILD RUN true
`},
	{name: "ENTRYPOINT resets CMD", text: "FROM BASE AS a\nCMD [\"x\"]\nFROM a\nENTRYPOINT [\"y\"]\n"},
	{name: "no HEALTHCHECK", text: "FROM BASE\nHEALTHCHECK NONE\nENTRYPOINT exec top\n"},
	{name: "triggers", text: `FROM BASE AS trigger
ONBUILD ARG WHO=nobody
ONBUILD RUN echo $WHO >/who
ONBUILD COPY a /triggered/
FROM trigger
RUN cat /who >/again
`},
	{name: "heredocs", text: `FROM BASE
ENV W=world
RUN <<EOF
echo "hello $W" >/a
cat <<E2 >/b
nested
E2
EOF
RUN <<-'EOF'
	echo "$W" >/c
	EOF
RUN cat <<X >/d && cat <<Y >/e
one $W
X
two
Y
RUN <<EOF
#!/bin/sh
echo "$0 $W" >/f
EOF
COPY <<one <<"two" <<-three /h/
$W
one
$W
two
	tab
three
COPY --chmod=751 --chown=3:4 <<x /single
text
x
`},
	{name: "copy", text: `FROM BASE
COPY a /one
COPY a b.txt d /several/
COPY *.txt /glob/
COPY d*/*.go /glob2/
COPY d/ /slash
COPY d /slash/
COPY d/. /dot/
COPY empty /made/up
COPY l /link/
COPY ld /linkdir/
COPY dirs/a dirs/b /merged/
COPY ["with space", "/with space/"]
COPY ../outside ./x /outside/
COPY nothing* /nothing/
COPY . /all
WORKDIR /rel
COPY a ./
COPY a b
COPY d ../up
`},
	{name: "owners and modes", text: `FROM BASE
COPY --chown=app a /1
COPY --chown=app:staff d /new/2
COPY --chown=12:34 d /3
COPY --chown=:staff a /4
COPY --chown=7 a /5
COPY --chmod=600 d /deep/6
COPY --chmod=4711 a /7
COPY --chmod=u+s,g+s,o-r a /8
COPY --chmod=u=rwX,go=rX d /9
COPY --chmod=+t d /10
COPY --chmod=a-x exe /11
USER app
WORKDIR /owned/by/app
COPY a by-root
`},
	{name: "parents and exclude", text: `FROM BASE
COPY --parents d/e/f.go a /1/
COPY --parents ./d/./e/f.go /2/
COPY --parents d/**/*.go /3/
COPY --parents **/b.txt /4/
COPY --parents --chown=5:6 dirs/*/x /5/
COPY --exclude=*.go d /6/
COPY --exclude=**/*.go d /7/
COPY --exclude=e --exclude=!e/f.go d /8/
COPY --parents --exclude=**/h.go d /9/
`},
	{name: "existing files", text: `FROM BASE
COPY modes /m
COPY --chmod=700 modes /m
COPY d /existing/d
COPY dirs /existing
COPY a /existing/d/h.go
COPY a /var/run/through
COPY dirs/ /var/run/
`},
	{name: "stages", text: `FROM BASE AS build
RUN mkdir -p /out/bin /out/etc && echo 1 >/out/bin/x && chmod 750 /out/bin
RUN ln -s x /out/bin/l && ln /out/bin/x /out/bin/h && chown -R 1000:50 /out/etc
FROM scratch AS files
COPY --from=build /out /
FROM BASE
COPY --from=files / /copied/
COPY --from=0 /out/bin/* /bins/
COPY --from=build --link /out/bin/x /linked/dir/x
COPY --link --chown=1:2 a /linked/a
COPY --link d /var/run/d
`},
	{name: "target", target: "b",
		text: "FROM BASE AS a\nRUN echo a >/a\nFROM a AS b\nRUN echo b >/b\nFROM b AS c\nRUN exit 1\n"},
	{name: "scratch", text: "FROM scratch\nWORKDIR /w\nCOPY a .\nENV X=1\n"},
	{name: "archives", text: `FROM BASE
ADD a.tar /1
ADD a.tar.gz /2/
ADD --chown=5:6 a.tar /3/new/
ADD --unpack=false a.tar /4/
COPY a.tar /5/
ADD a b.txt /6/
ADD a.tar /existing
`},
	{name: "mounts", text: `FROM BASE AS tools
RUN echo tool >/tool
FROM BASE
WORKDIR /w
COPY a /w/hidden/a
RUN --mount=type=bind,target=hidden,source=d ls /w/hidden >/ls
RUN --mount=type=bind,from=tools,source=/tool,target=/t/tool cat /t/tool >/tool
RUN --mount=target=/ctx cat /ctx/a >/ctxa
RUN --mount=type=tmpfs,target=/tmpfs/deep touch /tmpfs/deep/x /tmpfs/kept
RUN --mount=type=cache,target=/cache/dir touch /cache/dir/x
RUN --mount=type=cache,target=/cache2,uid=1000,gid=50,mode=0711 stat -c '%u %g %a' /cache2 >/stat
`},
	{name: "cache mounts with files", text: `FROM BASE AS seed
RUN mkdir -p /seed/d && echo S >/seed/s && echo D >/seed/d/f && chown 1000:50 /seed /seed/s && chmod 750 /seed
FROM BASE
RUN --mount=type=cache,id=f,target=/f,from=seed,source=/seed \
  cat /f/s /f/d/f >/1; stat -c '%u %g %a' /f >/2; touch /f/x
RUN --mount=type=cache,id=f,target=/other,from=seed,source=seed ls /other >/3
RUN --mount=type=cache,id=f,target=/f ls /f >/4
RUN --mount=type=cache,id=r,target=/f,from=seed,source=/seed,ro ls /f >/5
RUN --mount=type=cache,id=m,target=/f,from=seed,uid=3,mode=0711 ls /f >/6; stat -c '%u %g %a' /f >>/6
`},
	{name: "cache mounts with owners", text: `FROM BASE
RUN --mount=type=cache,id=o,target=/o touch /o/plain
RUN --mount=type=cache,id=o,target=/o,uid=3 ls /o >/1; stat -c '%u %g %a' /o >>/1; touch /o/owned; chmod 711 /o
RUN --mount=type=cache,id=o,target=/o,uid=3 ls /o >/2; stat -c '%u %g %a' /o >>/2
RUN --mount=type=cache,id=o,target=/o,uid=0 ls /o >/3
RUN --mount=type=cache,id=o,target=/o,uid=3,mode=0755 ls /o >/4
RUN --mount=type=cache,id=o,target=/o ls /o >/5
`},
	{name: "shell", text: `FROM BASE
SHELL ["/bin/sh", "-xc"]
RUN echo $0 >/0
RUN ["/bin/sh", "-c", "echo $0 >/1"]
CMD x $Y
`},
	{name: "escape", text: "# escape=`\nFROM BASE\nRUN echo a `\n  b >/a\nENV P=C:\\x\nRUN echo \"$P\" >/p\n"},
	{name: "removals", text: `FROM BASE
RUN rm -r /var && mkdir /var && echo 1 >/var/x
RUN mv /var/x /var/y; chmod 700 /var
RUN rm -rf /usr
`},
}

// featureContext has the files that these Dockerfiles copy.
func featureContext(b *bench) string {
	archive := tarred(func(tw *tar.Writer) {
		dirEntry(tw, "d", 0o750)
		fileEntry(tw, "d/f", "F", 0o640)
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: "d/g", Linkname: "d/f", Mode: 0o640})
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "d/s", Linkname: "f", Mode: 0o777})
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "own", Uid: 12, Gid: 13, Mode: 0o4755})
		fileEntry(tw, "implied/x", "X", 0o600)
	})
	var z bytes.Buffer
	gz := gzip.NewWriter(&z)
	_, _ = gz.Write(archive)
	_ = gz.Close()
	dir := b.context(map[string]string{
		"a": "A", "b.txt": "B", "c.txt": "C", "d/e/f.go": "F", "d/e/g/h.go": "H", "d/h.go": "H", "d/k": "K",
		"empty/": "", "l": "->a", "ld": "->d/e", "dirs/a/x": "1", "dirs/b/x": "2", "dirs/b/y": "3", "with space": "S",
		"outside": "O", "x": "X", "exe": "E", "modes/one/f": "1", "modes/two/": "",
		"a.tar": string(archive), "a.tar.gz": z.String(),
		".dockerignore": "ignored\n**/*.tmp\n", "ignored": "I", "d/x.tmp": "T",
	})
	for name, mode := range map[string]os.FileMode{"exe": 0o755, "modes/one": 0o711, "modes/two": 0o775, "d/e": 0o750} {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			b.t.Fatal(err)
		}
	}
	return dir
}

// TestAsBuildKit builds the same Dockerfiles with BuildKit, and compares files and configuration. "make test-images"
// sets the variables.
//
// mission: B2
func TestAsBuildKit(t *testing.T) {
	daemon, client := os.Getenv("HARVEST_TEST_BUILDKITD"), os.Getenv("HARVEST_TEST_BUILDCTL")
	if daemon == "" || client == "" {
		t.Skip("HARVEST_TEST_BUILDKITD and HARVEST_TEST_BUILDCTL are not set: run make test-images")
	}
	b := newBench(t, Options{})
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	config := image.Config{Env: map[string]string{"PATH": "/bin", "FROM_BASE": "yes"}, Cmd: []string{"base"},
		Labels: map[string]string{"base": "1"}, Dir: "/", History: []image.History{{By: "base"}}}
	b.lib.add(host+"/base", config, tinyForBuildKit(t))
	pushBase(t, host+"/base", config)
	addr := startBuildKit(t, daemon, client, host)
	dir := featureContext(b)
	for _, f := range features {
		t.Run(f.name, func(t *testing.T) {
			text := strings.ReplaceAll(f.text, "BASE", host+"/base")
			wantFiles, want := buildWith(t, client, addr, dir, text, f.target, f.args)
			img := b.spec(t, image.Spec{Dockerfile: text, Target: f.target, Args: f.args},
				image.BuildOptions{Context: dir})
			if diff := cmp.Diff(listing(wantFiles), listing(img.Tree)); diff != "" {
				t.Errorf("files (-BuildKit +Harvest):\n%s", diff)
			}
			if diff := cmp.Diff(want, plainConfig(img.config)); diff != "" {
				t.Errorf("configuration (-BuildKit +Harvest):\n%s", diff)
			}
		})
	}
}

// listing describes all files of a tree but their times.
func listing(t *files.Tree) map[string]string {
	all := map[string]string{}
	first := map[*files.File]string{}
	_ = t.Root.Walk("", func(name string, f *files.File) error {
		sum, err := f.ContentDigest()
		all[name] = fmt.Sprintf("%c %o %d:%d %d %s %.8s %v", f.Type, f.Mode, f.UID, f.GID, f.Size, f.Link, sum,
			f.Xattrs)
		if other, again := first[f]; again && !f.IsDir() {
			all[name] += " = " + other
		}
		first[f] = name
		return err
	})
	return all
}

// plainConfig is the comparable part of a configuration.
func plainConfig(c image.Config) map[string]string {
	all := map[string]string{}
	for name, value := range map[string]any{"env": c.Env, "user": c.User, "dir": c.Dir, "entrypoint": c.Entrypoint,
		"cmd": c.Cmd, "shell": c.Shell, "ports": set(c.Ports), "volumes": set(c.Volumes), "labels": c.Labels,
		"signal": c.StopSignal, "health": c.Healthcheck, "author": c.Author, "triggers": c.OnBuild} {
		text, _ := json.Marshal(value)
		all[name] = string(text)
	}
	for _, h := range c.History {
		all["history"] += h.By + "\n"
	}
	return all
}

func set(names []string) map[string]bool {
	all := map[string]bool{}
	for _, name := range names {
		all[name] = true
	}
	return all
}

// tinyForBuildKit is tiny with the directories on which BuildKit mounts file systems. It leaves them in images without
// them, and Harvest does not.
func tinyForBuildKit(t *testing.T) func(tw *tar.Writer) {
	return func(tw *tar.Writer) {
		tiny(t)(tw)
		dirEntry(tw, "proc", 0o755)
		dirEntry(tw, "sys", 0o755)
	}
}

// pushBase pushes the base with that configuration.
func pushBase(t *testing.T, ref string, c image.Config) { pushImage(t, ref, c, tinyForBuildKit(t)) }

// pushImage pushes an image with that configuration and those files to a registry.
func pushImage(t *testing.T, ref string, c image.Config, fill func(tw *tar.Writer)) {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	fill(tw)
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		static.NewLayer(b.Bytes(), types.OCIUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", "amd64"
	file.Config = v1.Config{Cmd: c.Cmd, Labels: c.Labels, WorkingDir: c.Dir}
	for key, value := range c.Env {
		file.Config.Env = append(file.Config.Env, key+"="+value)
	}
	file.History = []v1.History{{CreatedBy: "base"}}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
}

// startBuildKit starts a daemon of BuildKit, and returns its address.
func startBuildKit(t *testing.T, daemon, client, host string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bk-") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	config := filepath.Join(dir, "buildkitd.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "[registry.%q]\n  http = true\n", host), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := "unix://" + filepath.Join(dir, "sock")
	out, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(daemon, "--config", config, "--root", filepath.Join(dir, "root"), "--addr", addr,
		"--containerd-worker=false", "--oci-worker-snapshotter=native", "--oci-worker-binary=runc",
		"--oci-worker-net=host")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(out.Name())
			t.Logf("%s", text[max(0, len(text)-4000):])
		}
	})
	testenv.Eventually(t, "BuildKit answers", func() bool {
		return exec.Command(client, "--addr", addr, "debug", "workers").Run() == nil
	})
	return addr
}

// buildWith builds with BuildKit, and returns the image's files and configuration.
func buildWith(t *testing.T, client, addr, dir, text, target string, args map[string]string) (*files.Tree,
	map[string]string) {
	t.Helper()
	tree, config, err := tryBuildKit(t, client, addr, dir, text, target, args)
	if err != nil {
		t.Fatal(err)
	}
	return tree, config
}

// tryBuildKit is buildWith for Dockerfiles that BuildKit may refuse.
func tryBuildKit(t *testing.T, client, addr, dir, text, target string, args map[string]string) (*files.Tree,
	map[string]string, error) {
	t.Helper()
	own := t.TempDir()
	if err := os.WriteFile(filepath.Join(own, "Dockerfile"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	dest := filepath.Join(own, "out.tar")
	line := []string{"--addr", addr, "build", "--frontend", "dockerfile.v0", "--local", "context=" + dir, "--local",
		"dockerfile=" + own, "--output", "type=oci,compression=uncompressed,force-compression=true,dest=" + dest,
		"--opt", "target=" + target}
	for key, value := range args {
		line = append(line, "--opt", "build-arg:"+key+"="+value)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, client, line...).CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("%w\n%s", err, out)
	}
	blobs := readArchiveFiles(t, dest)
	var index v1.IndexManifest
	unmarshal(t, blobs["index.json"], &index)
	manifest, config := v1.Manifest{}, dockerspec.DockerOCIImage{}
	unmarshal(t, blobs["blobs/sha256/"+index.Manifests[0].Digest.Hex], &manifest)
	unmarshal(t, blobs["blobs/sha256/"+manifest.Config.Digest.Hex], &config)
	files := files.NewTree()
	for _, l := range manifest.Layers {
		layer := filepath.Join(own, l.Digest.Hex)
		if err := os.WriteFile(layer, blobs["blobs/sha256/"+l.Digest.Hex], 0o600); err != nil {
			t.Fatal(err)
		}
		if err := files.AddTar(layer); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = files.Close() })
	return files, theirConfig(t, config), nil
}

func unmarshal(t *testing.T, data []byte, to any) {
	t.Helper()
	if err := json.Unmarshal(data, to); err != nil {
		t.Fatal(err)
	}
}

// readArchiveFiles returns the files of an archive by name.
func readArchiveFiles(t *testing.T, name string) map[string][]byte {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string][]byte{}
	for tr := tarfs.NewReader(f); ; {
		hdr, err := tr.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if all[hdr.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
}

// theirConfig is plainConfig of BuildKit's result.
func theirConfig(t *testing.T, file dockerspec.DockerOCIImage) map[string]string {
	t.Helper()
	from := file.Config
	c := image.Config{Env: map[string]string{}, User: from.User, Dir: from.WorkingDir, Entrypoint: from.Entrypoint,
		Cmd: from.Cmd, Shell: from.Shell, Labels: from.Labels, StopSignal: from.StopSignal, OnBuild: from.OnBuild,
		Author: file.Author}
	for _, kv := range from.Env {
		key, value, _ := strings.Cut(kv, "=")
		c.Env[key] = value
	}
	for port := range from.ExposedPorts {
		c.Ports = append(c.Ports, port)
	}
	for volume := range from.Volumes {
		c.Volumes = append(c.Volumes, volume)
	}
	if from.Healthcheck != nil {
		text, err := json.Marshal(from.Healthcheck)
		if err != nil {
			t.Fatal(err)
		}
		c.Healthcheck = text
	}
	for _, h := range file.History {
		if h.CreatedBy != "" {
			c.History = append(c.History, image.History{By: h.CreatedBy})
		}
	}
	return plainConfig(c)
}
