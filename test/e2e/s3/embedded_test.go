package s3

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3/embedded"
	"github.com/RelevanceAI/harvest/test/host"
)

// embeddedHost is a server that has nothing configured but the embedded S3.
func embeddedHost(t *testing.T, engine string) *host.Host {
	t.Helper()
	var setup func(*testscript.Env) error
	if engine == "gvisor" {
		setup = host.GVisor(t)
	}
	h := host.New(t, engine, setup)
	h.Env.Setenv("HARVEST_S3_ENDPOINT", "embedded")
	return h
}

// object is the content of an object of the embedded S3.
func object(h *host.Host, path string) string {
	content, _ := os.ReadFile(filepath.Join(h.Data, "s3server", "buckets", path))
	return string(content)
}

// s3Process is the process of the embedded S3.
func s3Process(h *host.Host) (pid int) {
	h.T.Helper()
	testenv.Eventually(h.T, "the embedded S3 runs", func() bool {
		all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range all {
			text, _ := os.ReadFile(file)
			if string(text) == embedded.Name+"\x00"+filepath.Join(h.Data, "s3server")+"\x00" {
				pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(file)))
			}
		}
		return pid != 0
	})
	return pid
}

// TestEmbeddedS3 checks that files of a sandbox go to the embedded S3 and come back to the next sandbox, with no other
// configuration and no secret, also after the end of the server and of the S3's own process.
// mission: 1.3, 2.7, 3.1, 9.3, A8, D2, D3, D4
func TestEmbeddedS3(t *testing.T) {
	t.Parallel()
	h := embeddedHost(t, "gvisor")
	const place = "s3://files/tree:/data:init:sync"
	h.Must("sandbox", "create", "--name", "one", "--s3", place)
	h.Must("sandbox", "exec", "one", "--", "sh", "-ec",
		"mkdir /data/d; printf one > /data/d/a.txt; chmod 750 /data/d/a.txt; ln -s a.txt /data/d/link")
	h.Must("sandbox", "rm", "one")
	if got := object(h, "files/tree/d/a.txt"); got != "one" {
		t.Errorf("the bucket has %q", got)
	}
	const look = "cat /data/d/link; stat -c ' %a' /data/d/a.txt"
	h.Must("volume", "rm", h.Must("volume", "ls", "-o", "name"))
	if got := h.Must("run", "--s3", place, "--", "sh", "-ec", look); got != "one 750" {
		t.Errorf("the next sandbox sees %q", got)
	}
	// The server's own bucket.
	h.Must("run", "--s3", "s3:/data:init:sync", "-v", "files:/data", "--", "sh", "-c", "printf own > /data/own.txt")
	if got := object(h, "volumes/personal/files/own.txt"); got != "own" {
		t.Errorf("the server's bucket has %q", got)
	}
	h.Must("volume", "sync", "files", "--versioned")
	if got := h.Must("volume", "versions", "files", "-o", "name"); !regexp.MustCompile(`^[0-9]+$`).MatchString(got) ||
		object(h, "volumes/personal/.versions/files/"+got+"/own.txt") != "own" {
		t.Errorf("versions: %q", got)
	}
	// Its process dies, and another one serves.
	first := s3Process(h)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.Must("run", "--s3", place, "--", "sh", "-c", "printf two > /data/b.txt")
	if got := object(h, "files/tree/b.txt"); got != "two" || s3Process(h) == first {
		t.Errorf("after its end the bucket has %q", got)
	}
	// The server dies: the next one has the same buckets.
	second := s3Process(h)
	h.Kill()
	if got := h.Must("run", "--s3", place, "--", "cat", "/data/b.txt"); got != "two" {
		t.Errorf("after the end of the server it is %q", got)
	}
	third := s3Process(h)
	if third == second {
		t.Error("the process of the earlier server goes on")
	}
	nobodySees(h, third)
	h.Must("down")
	if err := syscall.Kill(third, 0); err == nil {
		t.Error("the process goes on when the server has ended")
	}
}

// nobodySees fails the test if the secret key is in an argument, an environment, a log, or a file that others can read.
func nobodySees(h *host.Host, pid int) {
	h.T.Helper()
	path := filepath.Join(h.Data, "s3server", "keys.json")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		h.T.Errorf("the keys are %v, %v", info, err)
	}
	text, err := os.ReadFile(path)
	var keys embedded.Keys
	if err == nil {
		err = json.Unmarshal(text, &keys)
	}
	if err != nil || len(keys.SecretAccessKey) < 40 {
		h.T.Fatalf("the keys: %v", err)
	}
	for _, file := range []string{"/proc/" + strconv.Itoa(pid) + "/cmdline", "/proc/" + strconv.Itoa(pid) + "/environ",
		h.Data + "/server.log", h.Data + "/s3server/s3.log"} {
		text, err := os.ReadFile(file)
		if err != nil || strings.Contains(string(text), keys.SecretAccessKey) {
			h.T.Errorf("%s has the secret key, or cannot be read: %v", file, err)
		}
	}
}

// A bucket of the embedded S3 is mounted live, and the mount outlives the server, too.
// mission: D5
func TestEmbeddedS3Mount(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	h := embeddedHost(t, "gvisor")
	h.Must("sandbox", "create", "--name", "box", "--s3", "s3://live/data:/data:mount")
	h.Must("sandbox", "exec", "box", "--", "sh", "-ec", "printf one > /data/a.txt; sync")
	if got := object(h, "live/data/a.txt"); got != "one" {
		t.Errorf("the bucket has %q", got)
	}
	h.Kill()
	if got := h.Must("sandbox", "exec", "box", "--", "sh", "-ec",
		"cat /data/a.txt; printf two > /data/b.txt; sync"); got != "one" {
		t.Errorf("it sees %q", got)
	}
	if got := object(h, "live/data/b.txt"); got != "two" {
		t.Errorf("the bucket has %q", got)
	}
	h.Must("sandbox", "rm", "box")
}

// TestEmbeddedS3OfAccounts checks that accounts have separate buckets, even with equal names, that invalid names are
// refused, and that a secret selects S3 elsewhere.
// mission: 9.3
func TestEmbeddedS3OfAccounts(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := embeddedHost(t, "fake")
	file := filepath.Join(t.TempDir(), "a.txt")
	if err := os.WriteFile(file, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.Must("volume", "create", "data")
	h.Must("volume", "cp", file, "data:/")
	h.Must("volume", "sync", "data", "s3://files/x")
	for name, want := range map[string]string{"s3://Work/x": "invalid bucket name",
		"s3://files.acme/x": "invalid bucket name", "s3://wo/x": "invalid bucket name"} {
		if _, stderr, code := h.Run("volume", "sync", "data", name); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d %s", name, code, stderr)
		}
	}
	if _, stderr, code := h.Run("volume", "sync", "data", "s3://files/x", "--secret", "elsewhere"); code == 0 ||
		!strings.Contains(stderr, "there is no secret") {
		t.Errorf("elsewhere: %d %s", code, stderr)
	}
}

// doctor and config show it.
func TestEmbeddedS3Shown(t *testing.T) {
	t.Parallel()
	h := embeddedHost(t, "fake")
	detail := func() string {
		t.Helper()
		out, _, _ := h.Run("doctor", "-o", "json")
		var all []api.Finding
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, f := range all {
			if f.Name == "embedded S3" && f.OK {
				return f.Detail
			}
		}
		t.Fatalf("doctor says %s", out)
		return ""
	}
	if got := detail(); !strings.Contains(got, "while the server runs") {
		t.Errorf("without a server: %s", got)
	}
	h.Must("sandbox", "ls")
	if got := detail(); !strings.Contains(got, "; answers") {
		t.Errorf("with one: %s", got)
	}
	if got := h.Must("config"); !strings.Contains(got, "endpoint: embedded") {
		t.Errorf("the configuration is %s", got)
	}
}

// TestEmbeddedS3Refused checks that a server that could not serve S3 does not start, and gives the reason.
func TestEmbeddedS3Refused(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := embeddedHost(t, "fake")
	refused := func(why, want string) {
		t.Helper()
		if _, stderr, code := h.Run("sandbox", "ls"); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d, %s; want %q", why, code, stderr, want)
		}
	}
	dir := filepath.Join(h.Data, "s3server")
	if err := os.MkdirAll(filepath.Join(dir, "s3.sock", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	refused("no socket can be made", "embedded S3")
	if err := os.RemoveAll(filepath.Join(dir, "s3.sock")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "keys.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused("damaged keys", "keys.json")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("none", dir, "ramfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		refused("the wrong file system", "keeps no extended attributes")
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	h.Must("sandbox", "ls")
}
