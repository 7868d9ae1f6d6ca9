package release

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// containerImages returns the images in the OCI archive of a release, by architecture.
func containerImages(t *testing.T, dist string) map[string]v1.Image {
	t.Helper()
	dir := t.TempDir()
	archive, err := os.Open(filepath.Join(dist, "harvest_0.1.0_oci.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	for name, m := range untar(t, archive) {
		path := filepath.Join(dir, name)
		if m.mode.IsDir() {
			err = os.MkdirAll(path, 0o755)
		} else if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			err = os.WriteFile(path, []byte(m.text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := top.IndexManifest()
	if err != nil || len(list.Manifests) != 1 ||
		list.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "0.1.0" {
		t.Fatalf("%v: the archive has %+v", err, list)
	}
	index, err := top.ImageIndex(list.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	if list, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	images := map[string]v1.Image{}
	for _, m := range list.Manifests {
		if images[m.Platform.Architecture], err = index.Image(m.Digest); err != nil || m.Platform.OS != "linux" {
			t.Fatalf("%v: %+v", err, m.Platform)
		}
	}
	return images
}

// TestContainerImage checks the platforms, configuration and files of the image.
func TestContainerImage(t *testing.T) {
	t.Parallel()
	images := containerImages(t, packed(t, stageOf(t, nil)))
	if len(images) != 2 {
		t.Errorf("the archive has images for %d architectures", len(images))
	}
	for _, arch := range []string{"amd64", "arm64"} {
		config, err := images[arch].ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != arch || !slices.Equal(config.Config.Entrypoint, []string{"harvest"}) ||
			config.Created.Unix() != epoch || config.Config.Labels["org.opencontainers.image.revision"] != commit {
			t.Errorf("%s: the configuration is %+v", arch, config)
		}
		files := map[string]member{}
		tarStream := mutate.Extract(images[arch])
		defer tarStream.Close()
		for archive := tar.NewReader(tarStream); ; {
			header, err := archive.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(archive)
			if err != nil {
				t.Fatal(err)
			}
			files[strings.TrimSuffix(header.Name, "/")] = member{header.FileInfo().Mode(), string(text)}
		}
		for name, mode := range map[string]fs.FileMode{"usr/bin/harvest": 0o755, "etc/passwd": 0o644,
			"tmp": fs.ModeDir | fs.ModeSticky | 0o777, "var/lib/harvest": fs.ModeDir | 0o700} {
			if files[name].mode != mode {
				t.Errorf("%s: %s has the mode %v, want %v", arch, name, files[name].mode, mode)
			}
		}
		if got := files["usr/bin/harvest"].text; got != "the program for linux_"+arch+"\n" {
			t.Errorf("%s: harvest is %q", arch, got)
		}
		certificates(t, files["etc/ssl/certs/ca-certificates.crt"].text)
	}
}

// certificates checks that a file has the usual number of certificate authorities.
func certificates(t *testing.T, text string) {
	t.Helper()
	count := 0
	for rest := []byte(text); ; count++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			t.Error(err)
		}
	}
	if count < 80 {
		t.Errorf("the image has %d certificates", count)
	}
}

// inImage runs harvest in a directory as root, which has no other program, in namespaces of its own.
const inImage = `set -e
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
cd "$ROOT"
mkdir -p old dev proc sys var/lib/harvest/images
for dir in dev sys; do mount --rbind /$dir $dir; done
mount -t proc proc proc
mount --bind "$IMAGES" var/lib/harvest/images
pivot_root . old
export PATH=/usr/bin HARVEST_DATA=/var/lib/harvest HARVEST_POOL=0
harvest run -q --code 'print(6*7)'
harvest down -q
`

// TestContainerImageRuns runs Python in a sandbox, with nothing but the files of the image and the base image.
//
// mission: A1
func TestContainerImageRuns(t *testing.T) {
	testenv.Long(t)
	testenv.Root(t)
	t.Parallel()
	images := host.Images(t)
	dist := packed(t, stageOf(t, map[string]string{"linux_amd64": testenv.CommandLine(t)}))
	root := t.TempDir()
	unpack := exec.CommandContext(t.Context(), "tar", "-xp", "-C", root)
	stream := mutate.Extract(containerImages(t, dist)["amd64"])
	defer stream.Close()
	unpack.Stdin = stream
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", append(namespaces, inImage)...)
	cmd.Env = append(testenv.CleanEnv(), "ROOT="+root, "IMAGES="+images)
	if out := stdout(t, cmd); out != "42\n" {
		t.Errorf("harvest run prints %s", out)
	}
}

// stdout runs a command and returns its standard output alone: a program that counts its statements warns on standard
// error when it does not see the directory of the counters, as in another root directory.
func stdout(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, out, stderr.Bytes())
	}
	return string(out)
}
