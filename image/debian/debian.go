// Package debian makes Harvest's base image from Debian's packages, with mmdebstrap and the package sources that this machine uses.
//
// It works for root and, through user namespaces, for ordinary users. Nothing is unpacked twice: mmdebstrap's tar stream
// goes straight into the EROFS image.
package debian

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/image/rootfs"
	"github.com/RelevanceAI/harvest/image/trust"
)

// suite is bookworm for its Python 3.11.
const suite = "bookworm"

// statusFile is where Debian keeps what is installed.
const statusFile = "var/lib/dpkg/status"

// packages of the base image: what the mission asks for, what compiles Python's extensions, and what people miss at once.
var packages = []string{
	"python3", "python3-venv", "python3-pip", "python3-dev", "python-is-python3", "git", "curl", "build-essential", "libffi-dev", "libssl-dev", "zlib1g-dev",
	"ca-certificates", "procps", "less", "iproute2", "netbase", "unzip",
}

// shown are further packages whose versions people ask for.
var shown = []string{"gcc", "make", "openssl", "perl", "libc6"}

// dpkgOptions leave out files, which makes the image a third smaller. Licences stay; so do static libraries that programs link with.
// Nor need dpkg wait for the disk in a tree that is thrown away if anything fails.
var dpkgOptions = []string{
	"force-unsafe-io",
	"path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright", "path-exclude=/usr/share/man/*", "path-exclude=/usr/share/info/*",
	"path-exclude=/usr/share/locale/*", "path-exclude=/usr/share/lintian/*", "path-exclude=/usr/bin/*-lto-dump-*",
	"path-exclude=/usr/lib/python3*/config-*/*.a", "path-exclude=/usr/lib/gcc/*/lib?san.a",
}

//go:embed customize.sh
var customize string

// Options of a Source.
type Options struct {
	// CertificateDir has the certificate authorities (*.crt) of this machine that sandboxes trust too. "" means none.
	CertificateDir string
	// Sources are lines as in apt's sources.list. nil means this machine's own for Debian, or else mmdebstrap's choice.
	Sources []string
}

// Source makes the base image. It implements image.Source.
type Source struct{ opts Options }

// New returns a Source.
func New(opts Options) *Source { return &Source{opts} }

// Resolve implements image.Source: the fingerprint is of the recipe and the certificates.
func (s *Source) Resolve(_ context.Context, spec image.Spec, _ image.BuildOptions) (image.Spec, []byte, error) {
	certs, err := trust.Read(s.opts.CertificateDir)
	if err != nil {
		return image.Spec{}, nil, err
	}
	recipe := sha256.Sum256([]byte(strings.Join(arguments(nil, nil), "\x00")))
	text, err := json.Marshal(struct {
		Recipe       []byte
		Architecture string
		Certificates []trust.Certificate
	}{recipe[:], runtime.GOARCH, certs})
	return spec, text, errors.Wrapf(err, "encode the fingerprint")
}

// arguments returns those of mmdebstrap that decide what the image is like.
func arguments(certs []trust.Certificate, aptOptions []string) []string {
	args := []string{"--mode=unshare", "--variant=minbase", "--format=tar", "--skip=cleanup/apt", "--verbose", "--include=" + strings.Join(packages, ",")}
	for _, o := range dpkgOptions {
		args = append(args, "--dpkgopt="+o)
	}
	for _, o := range append([]string{`Acquire::Languages "none";`, `Acquire::Retries "2";`}, aptOptions...) {
		args = append(args, "--aptopt="+o)
	}
	for _, c := range certs {
		args = append(args, "--customize-hook="+hook(c))
	}
	return append(args, "--customize-hook="+customize, suite, "-")
}

// hook returns a command that puts a certificate where update-ca-certificates finds it. Name and PEM are our own encoding, so that
// nothing in them means anything to the shell.
func hook(c trust.Certificate) string {
	return fmt.Sprintf("cat >\"$1/usr/local/share/ca-certificates/%s\" <<'END'\n%sEND\n", c.Name, c.PEM)
}

// Build implements image.Source.
func (s *Source) Build(ctx context.Context, _ image.Spec, opts image.BuildOptions, out image.Output) (image.Contents, error) {
	if err := checkTools(); err != nil {
		return image.Contents{}, errors.Stage(err, "image: prepare")
	}
	certs, err := trust.Read(s.opts.CertificateDir)
	if err != nil {
		return image.Contents{}, errors.Stage(err, "image: prepare")
	}
	sources, aptOptions := s.opts.Sources, []string(nil)
	if sources == nil {
		sources, aptOptions = hostSources(ctx), hostOptions(ctx)
	}
	w := rootfs.NewWriter(out.Root, rootfs.Options{})
	var status bytes.Buffer
	run := &run{args: append(arguments(certs, aptOptions), sources...), temp: out.Temp, progress: opts.Progress}
	err = run.run(ctx, func(tar io.Reader) error {
		return w.AddTar(tar, func(name string) io.Writer {
			if name == statusFile {
				status.Reset()
				return &status
			}
			return nil
		})
	})
	if err != nil {
		return image.Contents{}, err
	}
	if _, err := w.Close(); err != nil {
		return image.Contents{}, errors.Stage(err, "image: pack")
	}
	parts, missing := installed(status.String())
	return image.Contents{Config: configure(len(certs) > 0), Parts: append(parts, run.parts...), Missing: append(missing, run.missing...)}, nil
}

// configure returns how commands run in the image. Programs that bring certificates of their own are told where the system's are, if
// those are more.
func configure(certificates bool) image.Config {
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
	if certificates {
		maps.Copy(env, trust.Env(trust.Bundle))
	}
	return image.Config{Env: env}
}

// installed reads from dpkg's status what is in the image, and what should be and is not.
func installed(status string) (parts, missing []image.Part) {
	versions := map[string]string{}
	for paragraph := range strings.SplitSeq(status, "\n\n") {
		var name, state, version string
		for line := range strings.SplitSeq(paragraph, "\n") {
			key, value, _ := strings.Cut(line, ": ")
			switch key {
			case "Package":
				name = value
			case "Status":
				state = value
			case "Version":
				version = value
			}
		}
		if strings.HasSuffix(state, " installed") {
			versions[name] = version
		}
	}
	for i, name := range append(append([]string{}, packages...), shown...) {
		version, ok := versions[name]
		switch {
		case ok:
			parts = append(parts, image.Part{Name: name, Version: version})
		case i < len(packages):
			missing = append(missing, image.Part{Name: name, Reason: "Debian did not install it"})
		}
	}
	return parts, missing
}

// checkTools says what to install before mmdebstrap says it less clearly.
func checkTools() error {
	tools := []string{"mmdebstrap"}
	if os.Geteuid() != 0 {
		tools = append(tools, "newuidmap", "newgidmap")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			err = errors.Explainf(err, errors.Unsupported, "the base image cannot be built: this machine has no %s", tool)
			return errors.Remedy(err, "apt-get install mmdebstrap uidmap")
		}
	}
	return nil
}
