package debian

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/processes"
	"github.com/RelevanceAI/harvest/internal/image"
)

//go:embed supervise.sh
var supervise string

// keptLines is the number of last lines of mmdebstrap's output in an error for operators.
const keptLines = 30

// passed are the network settings that a build gets from our environment. It gets no others.
var passed = []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PIP_INDEX_URL",
	"PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST"}

// run is one run of mmdebstrap.
type run struct {
	args     []string
	temp     string
	progress func(image.Progress)

	phase   int // index into phases
	lines   int // lines in this phase
	last    []string
	parts   []image.Part
	missing []image.Part
}

// phases of mmdebstrap, by the beginning of the line that announces them, with their share of the
// progress.
var phases = []struct {
	line, step, text string
	from, to         float64
}{
	{"", "download", "starting mmdebstrap", 0, 0.02},
	{"I: running apt-get update", "download", "reading the package sources", 0.02, 0.06},
	{"I: downloading packages", "download", "fetching the essential packages", 0.06, 0.15},
	{"I: extracting archives", "install", "extracting the essential packages", 0.15, 0.18},
	{"I: installing essential packages", "install", "installing the essential packages", 0.18, 0.45},
	{"I: installing remaining packages", "install", "installing the other packages", 0.45, 0.85},
	{"I: running --customize-hook", "configure", "adding certificates and uv", 0.85, 0.92},
	{"I: creating tarball", "pack", "packing the image", 0.92, 1},
}

// details are the beginnings of lines to show to users.
var details = []string{"Get:", "Unpacking ", "Setting up "}

// run runs mmdebstrap and passes its tar stream to pack. On return, no process or file of
// mmdebstrap is left.
func (r *run) run(ctx context.Context, pack func(tar io.Reader) error) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", supervise, "harvest-image"}, r.args...)...)
	cmd.Dir = "/"
	cmd.Env = environment(r.temp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		confine(cmd.SysProcAttr)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return errors.Wrapf(err, "make a pipe")
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return errors.Wrapf(err, "make a pipe")
	}
	life, hold, err := os.Pipe()
	if err != nil {
		return errors.Wrapf(err, "make a pipe")
	}
	end := sync.OnceFunc(func() { hold.Close() })
	defer end()
	// Shells have one digit for a descriptor. Inherited files would leave too few to mmdebstrap.
	processes.KeepFiles()
	cmd.ExtraFiles = []*os.File{life}
	cmd.Cancel = func() error { // kill the whole group, not only the shell
		end()
		return nil
	}
	err = cmd.Start()
	life.Close()
	if err != nil {
		return errors.Wrapf(err, "start mmdebstrap")
	}

	var reading sync.WaitGroup
	reading.Go(func() { r.read(stderr) })
	packErr := pack(stdout)
	if packErr != nil {
		end()
		io.Copy(io.Discard, stdout) // drain, so that its cleanup does not block
	}
	reading.Wait()
	waitErr := cmd.Wait()
	return r.outcome(context.Cause(ctx), packErr, waitErr)
}

// ids is how many users and groups packages may have.
const ids = 1 << 16

// confine starts a build of root in a user namespace with the same users. The scripts of packages then have no
// capabilities on this machine, and mmdebstrap has those that the server has given up. Builds of other users are in a
// user namespace that mmdebstrap makes.
func confine(a *syscall.SysProcAttr) {
	a.Cloneflags = syscall.CLONE_NEWUSER
	a.UidMappings = []syscall.SysProcIDMap{{Size: ids}}
	a.GidMappings = []syscall.SysProcIDMap{{Size: ids}}
	a.GidMappingsEnableSetgroups = true
}

// environment returns the environment of the build. Builds by root work in temp. Builds by other
// users run under further user ids, which cannot enter our directories, and use the system's
// temporary directory.
func environment(temp string) []string {
	env := []string{"PATH=" + os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin", "LANG=C.UTF-8", "HOME=/root",
		"DEBIAN_FRONTEND=noninteractive"}
	if os.Geteuid() == 0 {
		env = append(env, "TMPDIR="+temp)
	} else if dir := os.Getenv("TMPDIR"); dir != "" {
		env = append(env, "TMPDIR="+dir)
	}
	for _, name := range passed {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// read parses the output of mmdebstrap and its children.
func (r *run) read(stderr io.Reader) {
	sc := bufio.NewScanner(stderr)
	sc.Buffer(nil, 1<<20)
	sc.Split(splitLines)
	for sc.Scan() {
		if line := strings.TrimSpace(sc.Text()); line != "" {
			r.line(line)
		}
	}
	io.Copy(io.Discard, stderr) // after a line too long to scan
}

// splitLines also ends lines at carriage returns, which dpkg uses for its progress.
func splitLines(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexAny(data, "\r\n"); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

func (r *run) line(line string) {
	if about, ok := strings.CutPrefix(line, "harvest: "); ok {
		kind, rest, _ := strings.Cut(about, " ")
		name, text, _ := strings.Cut(rest, " ")
		if kind == "part" {
			r.parts = append(r.parts, image.Part{Name: name, Version: text})
		} else {
			r.missing = append(r.missing, image.Part{Name: name, Reason: text})
		}
		return
	}
	if r.last = append(r.last, line); len(r.last) > keptLines {
		r.last = r.last[1:]
	}
	r.lines++
	message := ""
	for i := len(phases) - 1; i > r.phase; i-- {
		if strings.HasPrefix(line, phases[i].line) {
			r.phase, r.lines, message = i, 0, phases[i].text
			break
		}
	}
	if slices.ContainsFunc(details, func(d string) bool { return strings.HasPrefix(line, d) }) {
		message = cut(line, 120)
	}
	if message == "" {
		return
	}
	// The number of lines is unknown: each moves the progress closer to the end of the phase
	// without reaching it.
	p, part := phases[r.phase], float64(r.lines)/float64(r.lines+100)
	r.progress(image.Progress{Step: p.step, Done: p.from + (p.to-p.from)*part, Message: message})
}

func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n]) + "…"
	}
	return s
}

// outcome returns the error of a run. A canceled context takes precedence, then a failure to write
// the image, then the error of mmdebstrap.
func (r *run) outcome(ctxErr, packErr, waitErr error) error {
	said := strings.Join(r.last, "\n")
	stage := "image: " + phases[r.phase].step
	switch {
	case ctxErr != nil:
		return errors.Stage(ctxErr, stage)
	case packErr != nil && errors.KindOf(packErr) != errors.Invalid:
		return errors.Stage(packErr, "image: pack")
	case waitErr != nil:
		return errors.Stage(explain(errors.Wrapf(waitErr, "mmdebstrap failed; its last lines:\n%s\n", said), said),
			stage)
	case packErr != nil: // success was reported, but the stream is unreadable
		return errors.Stage(errors.Explainf(packErr, errors.Internal, "mmdebstrap's output cannot be read"),
			"image: pack")
	}
	return nil
}

// complaints maps messages of the tools to errors. The first match wins.
var complaints = []struct {
	said         []string
	kind         errors.Kind
	text, remedy string
}{
	{[]string{"No space left on device", "enough free space", "Disk quota exceeded"}, errors.Exhausted,
		"the disk is full: there is no space left to build the image",
		"free about 2 GB on the disk of the data directory, and of TMPDIR for ordinary users"},
	{[]string{"/etc/subuid", "/etc/subgid", "newuidmap", "newgidmap"}, errors.Unsupported,
		"the base image cannot be built: this user may not use further user ids",
		"as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 NAME"},
	{[]string{"unshare"}, errors.Unsupported,
		"the base image cannot be built: this machine does not allow namespaces",
		"allow user namespaces (sysctl user.max_user_namespaces), or build as root"},
	{[]string{"Operation not permitted"}, errors.Unsupported,
		"the base image cannot be built: the server lacks a privilege that mmdebstrap needs",
		"read the server's log for the operation, and build the image outside of a container or a restricted service"},
	{[]string{"NO_PUBKEY", "is not signed", "not valid yet", "is expired"}, errors.Unavailable,
		"the package sources cannot be trusted",
		"apt-get install debian-archive-keyring, and check this machine's clock"},
	{[]string{"Failed to fetch", "Could not resolve", "Temporary failure resolving", "Could not connect",
		"Unable to connect", "Connection timed out", "Some index files failed to download",
		"does not have a Release file", "Unable to fetch"},
		errors.Unavailable, "the package sources cannot be reached",
		"check the network and this machine's apt sources, then try again"},
}

func explain(err error, said string) error {
	for _, c := range complaints {
		for _, s := range c.said {
			if strings.Contains(said, s) {
				return errors.Remedy(errors.Explainf(err, c.kind, "%s", c.text), "%s", c.remedy)
			}
		}
	}
	return errors.Remedy(errors.Explainf(err, errors.Internal, "mmdebstrap could not build the base image"),
		"see its last lines in the log")
}
