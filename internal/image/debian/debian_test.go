package debian

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/trust"
)

var _ image.Source = (*Source)(nil)

func TestDebianSources(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		targets string
		want    []string
	}{
		"bookworm": {`http://mirror.example/debian/ bookworm main Debian
http://mirror.example/debian/ bookworm main Debian
http://mirror.example/debian/ bookworm-updates main Debian
http://mirror.example/debian-security/ bookworm-security main Debian`, []string{
			"deb http://mirror.example/debian-security/ bookworm-security main",
			"deb http://mirror.example/debian/ bookworm main",
			"deb http://mirror.example/debian/ bookworm-updates main"}},
		"never fetched": {"https://mirror.example/debian bookworm main $(ORIGIN)",
			[]string{"deb https://mirror.example/debian bookworm main"}},
		"no origin": {"https://mirror.example/debian bookworm main",
			[]string{"deb https://mirror.example/debian bookworm main"}},
		"other release": {"http://m.example/debian trixie main Debian\nhttp://m.example/debian-security " +
			"trixie-security main Debian", []string{
			"deb http://m.example/debian bookworm main",
			"deb http://m.example/debian-security bookworm-security main"}},
		"old style": {"http://m.example/debian stable main Debian\nhttp://m.example/security stable/updates main Debian", []string{"deb http://m.example/debian bookworm main", "deb http://m.example/security bookworm-security main"}},
		"mirror named": {"https://mirror.example/artifacts/anything bookworm main Debian",
			[]string{"deb https://mirror.example/artifacts/anything bookworm main"}},
		"third parties": {`https://packages.example/apt cloud-sdk-bookworm main cloud-sdk
https://node.example/node_20.x nodistro main node
https://docker.example/linux/debian bookworm stable Docker
https://vendor.example/debian/12/prod bookworm main vendor
https://vendor.example/debian/12/prod bookworm main $(ORIGIN)
https://vendor.example/debian bookworm main vendor
https://pg.example/pub/repos bookworm-pgdg main
http://m.example/debian bookworm-backports main Debian
http://m.example/debian bookworm contrib Debian
http://u.example/ubuntu jammy main Ubuntu
% bookworm main`, nil},
		"updates only": {"http://m.example/debian bookworm-updates main Debian", nil},
		"nothing":      {"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, debianSources(tc.targets)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestInstalled(t *testing.T) {
	t.Parallel()
	var status strings.Builder
	for _, p := range packages {
		if p != "git" && p != "curl" {
			status.WriteString("Package: " + p + "\nStatus: install ok installed\nPriority: optional\nVersion: " +
				"1:2.3-4\nDescription: x\n Package: no\n\n")
		}
	}
	status.WriteString("Package: git\nStatus: deinstall ok config-files\nVersion: 1\n\nPackage: gcc\nStatus: install " +
		"ok installed\nVersion: 12\n")
	parts, missing := installed(status.String())
	if diff := cmp.Diff([]image.Part{{Name: "git", Reason: "Debian did not install it"},
		{Name: "curl", Reason: "Debian did not install it"}}, missing); diff != "" {
		t.Error(diff)
	}
	if want := len(packages) - 2 + 1; len(parts) != want ||
		parts[0] != (image.Part{Name: "python3", Version: "1:2.3-4"}) ||
		parts[want-1] != (image.Part{Name: "gcc", Version: "12"}) {
		t.Errorf("got %v", parts)
	}
}

// certificateFile writes a new certificate and returns its PEM.
func certificateFile(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		NotAfter: time.Now().Add(time.Hour), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	text := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	if err := os.WriteFile(name, []byte("a comment\n'$(touch x)'\n"+text), 0o644); err != nil {
		t.Fatal(err)
	}
	return text
}

// mission: B1
func TestCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	one, two := certificateFile(t, filepath.Join(dir, "a b'c.crt")),
		certificateFile(t, filepath.Join(dir, "sub/two.crt"))
	certificateFile(t, filepath.Join(dir, "not.pem"))
	for name, text := range map[string]string{"text.crt": "no certificate",
		"key.crt": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling.crt")); err != nil {
		t.Fatal(err)
	}
	certs, err := trust.Read(dir)
	if err != nil || len(certs) != 2 || certs[0].PEM != one || certs[1].PEM != two {
		t.Fatalf("got %v, %v", certs, err)
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "usr/local/share/ca-certificates"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sh", "-c", hook(certs[0]), "sh", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if data, err := os.ReadFile(filepath.Join(root, "usr/local/share/ca-certificates", certs[0].Name)); err != nil ||
		string(data) != one {
		t.Errorf("the hook wrote %q, %v", data, err)
	}
	for _, none := range []string{"", filepath.Join(dir, "none")} {
		if certs, err := trust.Read(none); err != nil || len(certs) != 0 {
			t.Errorf("%q: got %v, %v", none, certs, err)
		}
	}
	if err := os.Symlink(".", filepath.Join(dir, "directory.crt")); err != nil {
		t.Fatal(err)
	}
	if _, err := trust.Read(dir); errors.KindOf(err) != errors.Denied || errors.RemedyOf(err) == "" {
		t.Errorf("an unreadable file: got %v", err)
	}
}

// mission: B1
func TestFingerprintFollowsTheCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := New(Options{CertificateDir: dir})
	seen := map[string]bool{}
	for range 3 {
		_, text, err := s.Resolve(t.Context(), image.Spec{}, image.BuildOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if seen[string(text)] {
			t.Errorf("other certificates have the same fingerprint %s", text)
		}
		seen[string(text)] = true
		if _, again, err := s.Resolve(t.Context(), image.Spec{}, image.BuildOptions{}); err != nil ||
			string(again) != string(text) {
			t.Errorf("got %s and %s, %v", text, again, err)
		}
		certificateFile(t, filepath.Join(dir, strconv.Itoa(len(seen))+".crt"))
	}
	if err := os.Symlink(".", filepath.Join(dir, "directory.crt")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Resolve(t.Context(), image.Spec{}, image.BuildOptions{}); errors.KindOf(err) != errors.Denied {
		t.Errorf("got %v", err)
	}
}

// stub puts a program of that name and text first in PATH.
func stub(t *testing.T, name, script string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

// start builds with the programs in PATH and returns the result.
func start(t *testing.T, ctx context.Context, progress func(image.Progress)) (image.Contents, *os.File, error) {
	t.Helper()
	root, err := os.Create(filepath.Join(t.TempDir(), "root"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	if progress == nil {
		progress = func(image.Progress) {}
	}
	c, err := New(Options{Sources: []string{"deb http://127.0.0.1:9/debian bookworm main"}}).Build(ctx,
		image.Spec{Base: "base"}, image.BuildOptions{Progress: progress},
		image.Output{Root: root, Temp: t.TempDir()})
	return c, root, err
}

// TestBuildInheritsNoFiles checks that mmdebstrap gets no file that this process inherited, which a caller left open.
func TestBuildInheritsNoFiles(t *testing.T) {
	number, err := unix.FcntlInt(os.Stderr.Fd(), unix.F_DUPFD, 40)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(number)
	dir := stub(t, "mmdebstrap", `ls /proc/$$/fd >"$(dirname "$0")/files"; exit 1`)
	if _, _, err := start(t, t.Context(), nil); err == nil {
		t.Error("the build succeeded")
	}
	files, err := os.ReadFile(filepath.Join(dir, "files"))
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(files)) {
		if n, err := strconv.Atoi(name); err != nil || n > 2 && n < 10 || n == number {
			t.Errorf("mmdebstrap has the files %q", files)
		}
	}
}

func TestBuildReadsWhatMmdebstrapSays(t *testing.T) {
	dir := stub(t, "mmdebstrap", `
for a; do echo "$a" >> "$(dirname "$0")/args"; done
env >"$(dirname "$0")/env"
echo "I: running apt-get update..." >&2
echo "Get:1 http://mirror.example bookworm InRelease" >&2
echo "I: installing remaining packages inside the chroot..." >&2
printf '(Reading database ... 5%%\r(Reading database ... 10%%\rSetting up git (1:2.39)\n' >&2
echo "harvest: part uv 0.5.1" >&2
echo "harvest: missing other no network here" >&2
echo "I: creating tarball..." >&2
d=$(mktemp -d) && mkdir -p $d/var/lib/dpkg && printf 'Package: git\nStatus: install ok installed\nVersion: 1:2.39\n' >$d/var/lib/dpkg/status && tar -C $d -c . && rm -r $d
`)
	t.Setenv("SECRET_TOKEN", "not for builds")
	t.Setenv("https_proxy", "http://proxy.example:3128")
	var steps []string
	last := -1.0
	c, root, err := start(t, t.Context(), func(p image.Progress) {
		steps = append(steps, p.Step+": "+p.Message)
		if p.Done < last || p.Done > 1 {
			t.Errorf("the progress goes from %v to %v", last, p.Done)
		}
		last = p.Done
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"download: reading the package sources",
		"download: Get:1 http://mirror.example bookworm InRelease", "install: installing the other packages",
		"install: Setting up git (1:2.39)", "pack: packing the image"}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]image.Part{{Name: "git", Version: "1:2.39"}, {Name: "uv", Version: "0.5.1"}},
		c.Parts); diff != "" {
		t.Error(diff)
	}
	if len(c.Missing) != len(packages) ||
		c.Missing[len(packages)-1] != (image.Part{Name: "other", Reason: "no network here"}) {
		t.Errorf("got %v", c.Missing)
	}
	if c.Config.Env["LANG"] != "C.UTF-8" || c.Config.Env["PIP_CERT"] != "" ||
		configure(true).Env["NODE_EXTRA_CA_CERTS"] != trust.Bundle {
		t.Errorf("got %v", c.Config)
	}
	if info, err := root.Stat(); err != nil || info.Size() == 0 {
		t.Errorf("the image has %d bytes, %v", info.Size(), err)
	}
	args, _ := os.ReadFile(filepath.Join(dir, "args"))
	if !strings.Contains(string(args), "deb http://127.0.0.1:9/debian bookworm main\n") ||
		!strings.Contains(string(args), "libffi-dev") {
		t.Errorf("got the arguments %s", args)
	}
	env, _ := os.ReadFile(filepath.Join(dir, "env"))
	if strings.Contains(string(env), "SECRET_TOKEN") ||
		!strings.Contains(string(env), "https_proxy=http://proxy.example:3128") {
		t.Errorf("got the environment %s", env)
	}
}

func TestBuildExplainsFailures(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		want         errors.Kind
		stage        string
	}{
		{"disk full",
			"echo 'I: extracting archives' >&2; echo 'tar: x: Cannot write: No space left on device' >&2; exit 25",
			errors.Exhausted, "image: install"},
		{"too little space", "echo \"E: You don't have enough free space in /var/cache/apt/archives/.\" >&2; exit 25",
			errors.Exhausted, "image: download"},
		{"no network",
			"echo 'I: running apt-get update' >&2; echo 'E: Failed to fetch http://x  Could not connect to x' >&2; " +
				"exit 25", errors.Unavailable, "image: download"},
		{"no keys",
			"echo 'I: running apt-get update' >&2; echo 'W: GPG error: The following signatures: NO_PUBKEY 0E98' " +
				">&2; exit 25", errors.Unavailable, "image: download"},
		{"no subuids", "echo 'W: no entry in /etc/subuid for nobody' >&2; exit 25", errors.Unsupported,
			"image: download"},
		{"no namespaces", "echo 'E: unable to unshare: Operation not permitted' >&2; exit 1", errors.Unsupported,
			"image: download"},
		{"no privilege", "echo 'I: extracting archives' >&2; echo 'E: chroot: Operation not permitted' >&2; exit 1",
			errors.Unsupported, "image: install"},
		{"anything else", "echo 'I: installing remaining packages' >&2; echo 'E: whatever' >&2; exit 2",
			errors.Internal, "image: install"},
		{"no tar", "echo noise", errors.Internal, "image: pack"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			stub(t, "mmdebstrap", tc.script)
			_, _, err := start(t, t.Context(), nil)
			if errors.KindOf(err) != tc.want || errors.StageOf(err) != tc.stage {
				t.Errorf("got %v of kind %s in stage %q", err, errors.KindOf(err), errors.StageOf(err))
			}
			if tc.want != errors.Internal && (errors.RemedyOf(err) == "" ||
				strings.Contains(errors.Message(err), "E: ")) {
				t.Errorf("the client reads %q, %q", errors.Message(err), errors.RemedyOf(err))
			}
			if i := strings.Index(tc.script, "E: whatever"); i >= 0 && !strings.Contains(err.Error(), "E: whatever") {
				t.Errorf("operators do not see the tool's last lines: %v", err)
			}
		})
	}
}

func TestBuildNeedsItsTools(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, _, err := start(t, t.Context(), nil)
	if errors.KindOf(err) != errors.Unsupported ||
		!strings.Contains(errors.RemedyOf(err), "apt-get install mmdebstrap uidmap") {
		t.Errorf("got %v, %q", err, errors.RemedyOf(err))
	}
	if got := hostSources(t.Context()); got != nil {
		t.Errorf("without apt there are the sources %v", got)
	}
	if got := hostOptions(t.Context()); got != nil {
		t.Errorf("without apt there are the options %v", got)
	}
}

func TestHostOptions(t *testing.T) {
	stub(t, "apt-config", `cat <<'END'
Acquire "";
Acquire::Check-Valid-Until "false";
Acquire::http::Proxy "http://proxy.example:3128";
Acquire::https::Proxy "";
Acquire::Languages "none";
END
`)
	want := []string{`Acquire::Check-Valid-Until "false";`, `Acquire::http::Proxy "http://proxy.example:3128";`}
	if diff := cmp.Diff(want, hostOptions(t.Context())); diff != "" {
		t.Error(diff)
	}
	stub(t, "apt-get", `echo "http://m.example/debian bookworm main Debian"`)
	if diff := cmp.Diff([]string{"deb http://m.example/debian bookworm main"}, hostSources(t.Context())); diff != "" {
		t.Error(diff)
	}
}

// slow is a mmdebstrap that would run for long, with a child, and cleans up on SIGTERM.
const slow = `
trap 'touch "$(dirname "$0")/cleared"; exit 1' TERM
trap '' PIPE
sleep 1000 &
echo "I: installing essential packages" >&2
cut -d' ' -f5 /proc/$$/stat >"$(dirname "$0")/group.new" && mv "$(dirname "$0")/group.new" "$(dirname "$0")/group"
echo "Unpacking x" >&2
wait
`

// alive returns the processes of the group that slow has written down.
func alive(t *testing.T, dir string) (left []string) {
	t.Helper()
	group, err := os.ReadFile(filepath.Join(dir, "group"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has just ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(rest) // state, parent, group
		if len(f) > 2 && f[0] != "Z" && f[2] == strings.TrimSpace(string(group)) {
			left = append(left, string(text))
		}
	}
	return left
}

// mission: B1
func TestCancelledBuildLeavesNoProcess(t *testing.T) {
	dir := stub(t, "mmdebstrap", slow)
	ctx, cancel := context.WithCancel(t.Context())
	_, _, err := start(t, ctx, func(p image.Progress) {
		if strings.HasPrefix(p.Message, "Unpacking") {
			cancel()
		}
	})
	if errors.KindOf(err) != errors.Canceled || errors.StageOf(err) != "image: install" {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cleared")); err != nil {
		t.Errorf("mmdebstrap was not given the time to clear up: %v", err)
	}
	until(t, func() bool { return len(alive(t, dir)) == 0 }) // the last killed process may need a moment
}

// TestMain lets this program stand for a server that is killed while it builds.
func TestMain(m *testing.M) {
	if dir := os.Getenv("DEBIAN_TEST_BUILD"); dir != "" {
		root, err := os.Create(filepath.Join(dir, "root"))
		if err != nil {
			os.Exit(1)
		}
		_, err = New(Options{Sources: []string{}}).Build(context.Background(), image.Spec{},
			image.BuildOptions{Progress: func(image.Progress) {}},
			image.Output{Root: root, Temp: dir})
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// mission: B1
func TestKilledServerLeavesNoProcess(t *testing.T) {
	dir := stub(t, "mmdebstrap", slow)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), "DEBIAN_TEST_BUILD="+t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { _, err := os.Stat(filepath.Join(dir, "group")); return err == nil })
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	until(t, func() bool { return len(alive(t, dir)) == 0 })
	if _, err := os.Stat(filepath.Join(dir, "cleared")); err != nil {
		t.Errorf("mmdebstrap was not given the time to clear up: %v", err)
	}
}

// until waits for an imminent event.
func until(t *testing.T, done func() bool) {
	t.Helper()
	for !done() {
		select {
		case <-t.Context().Done():
			t.Fatal("it did not happen")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestFullDiskWhilePacking(t *testing.T) {
	dir := testenv.SmallDisk(t, "size=1m")
	root, err := os.Create(filepath.Join(dir, "root"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	stub(t, "mmdebstrap",
		`d=$(mktemp -d) && head -c 8000000 /dev/urandom >$d/big && tar -C $d -c . ; rm -r $d; sleep 1000`)
	_, err = New(Options{Sources: []string{}}).Build(t.Context(), image.Spec{},
		image.BuildOptions{Progress: func(image.Progress) {}},
		image.Output{Root: root, Temp: t.TempDir()})
	if errors.KindOf(err) != errors.Exhausted || errors.StageOf(err) != "image: pack" ||
		!strings.Contains(errors.Message(err), "disk is full") {
		t.Errorf("got %v in stage %q", err, errors.StageOf(err))
	}
}

func TestLongLinesAreNoProblem(t *testing.T) {
	t.Parallel()
	var told []image.Progress
	r := &run{progress: func(p image.Progress) { told = append(told, p) }}
	r.read(strings.NewReader("Setting up " + strings.Repeat("é", 500) + "\n" + strings.Repeat("x", 2<<20) + "\nlast\n"))
	if len(told) != 1 || len([]rune(told[0].Message)) != 121 {
		t.Errorf("got %d reports", len(told))
	}
	for i := range 2 * keptLines {
		r.line(strconv.Itoa(i))
	}
	if len(r.last) != keptLines || r.last[keptLines-1] != strconv.Itoa(2*keptLines-1) {
		t.Errorf("kept %v", r.last)
	}
}
