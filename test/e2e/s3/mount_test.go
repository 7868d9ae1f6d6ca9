package s3

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	s3mount "github.com/RelevanceAI/harvest/internal/s3/mount"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// mountHost is a server whose sandboxes mount buckets of the S3 of the tests.
func mountHost(t *testing.T) (*host.Host, *host.S3) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("run it as root: it mounts")
	}
	s3 := host.NewS3(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Env.Setenv("HARVEST_S3_ENDPOINT", "http://"+s3.Address)
	h.Env.Setenv("HARVEST_S3_PATH_STYLE", "true")
	h.Must("secret", "set", "aws", "AWS_ACCESS_KEY_ID="+s3test.AccessKey, "AWS_SECRET_ACCESS_KEY="+s3test.SecretKey,
		"AWS_REGION=us-east-1")
	return h, s3
}

// TestSandboxMount checks that a bucket is mounted in a gVisor sandbox: commands read, list, write, append, rename and
// remove, and the bucket has all of it.
// mission: D5, 1.3, 1.5, 2.7
func TestSandboxMount(t *testing.T) {
	t.Parallel()
	h, s3 := mountHost(t)
	s3.Put("data/a/b.txt", "one")
	place := "s3://" + s3.Bucket + "/data:/data:mount"
	h.Must("sandbox", "create", "--name", "one", "--s3", place)
	in := func(script string) string {
		t.Helper()
		return h.Must("sandbox", "exec", "one", "--", "sh", "-ec", script)
	}
	if got := in("cat /data/a/b.txt; ls /data/a"); got != "oneb.txt" {
		t.Errorf("it sees %q", got)
	}
	in("printf two > /data/c.txt; mkdir /data/d; printf ' more' >> /data/c.txt; mv /data/c.txt /data/d/e.txt; ln -s " +
		"e.txt /data/d/link; chmod 600 /data/d/e.txt")
	if got := s3.Get("data/d/e.txt"); got != "two more" {
		t.Errorf("the bucket has %q", got)
	}
	if got := in("cat /data/d/link; stat -c ' %a' /data/d/e.txt; cp -r /data/d /data/copy; mv /data/copy " +
		"/data/moved; ls /data/moved; rm -r /data/d; ls /data"); got != "two more 600\ne.txt\nlink\na\nmoved" {
		t.Errorf("it sees %q", got)
	}
	if got := in("dd if=/dev/urandom of=/data/large bs=1M count=200 2>/dev/null; sha256sum < /data/large"); len(got) < 64 {
		t.Errorf("a large file: %q", got)
	}
	in("for i in $(seq 200); do echo $i > /data/moved/$i; done")
	if got := s3.Get("data/moved/200"); got != "200\n" {
		t.Errorf("the bucket has %q", got)
	}
	owners := in("touch /data/mine; chown 1000:7 /data/mine; stat -c %u:%g /data /data/mine; rm /data/mine")
	if owners != "0:0\n1000:7" {
		t.Errorf("it has the owners %q", owners)
	}
	// An unprivileged user is refused, as on any file system.
	if _, stderr, code := h.Run("sandbox", "exec", "-u", "nobody", "one", "--", "cat",
		"/data/moved/e.txt"); code == 0 || !strings.Contains(stderr, "Permission denied") {
		t.Errorf("somebody else reads it: %d %s", code, stderr)
	}
	// The credentials are neither in the sandbox nor visible to other users of the machine.
	if got := in("env; cat /proc/mounts /proc/self/mountinfo; ps axe || true; cat /proc/*/environ | tr '\\0' '\\n'"); strings.Contains(got, s3test.SecretKey) || strings.Contains(got, s3test.AccessKey) {
		t.Error("the sandbox has the credentials")
	}
	for _, file := range []string{"cmdline", "environ"} {
		all, _ := filepath.Glob("/proc/[0-9]*/" + file)
		for _, one := range all {
			if text, _ := os.ReadFile(one); strings.Contains(string(text), h.Data+"/mounts") &&
				strings.Contains(string(text), s3test.SecretKey) {
				t.Errorf("%s has the secret key", one)
			}
		}
	}
	// The server dies, and the next one takes the mount over.
	h.Kill()
	if got := in("cat /data/a/b.txt; printf after > /data/after.txt; sync"); got != "one" {
		t.Errorf("after a restart it sees %q", got)
	}
	if got := s3.Get("data/after.txt"); got != "after" {
		t.Errorf("the bucket has %q", got)
	}
	if _, stderr, code := h.Run("sandbox", "sync", "one"); code == 0 || !strings.Contains(stderr, "mounts S3") {
		t.Errorf("sync: %d %s", code, stderr)
	}
	if got := h.Must("sandbox", "get", "one"); !strings.Contains(got, "s3://"+s3.Bucket+"/data at /data") {
		t.Errorf("it is shown as %s", got)
	}
	h.Must("sandbox", "rm", "one")
	if left, _ := filepath.Glob(h.Data + "/mounts/*"); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
	// Read-only.
	out, stderr, code := h.Run("run", "--s3", place+":ro", "--", "sh", "-c", "cat /data/after.txt; echo x > /data/x")
	if code == 0 || out != "after" || !strings.Contains(stderr, "Read-only file system") || s3.Get("data/x") != "" {
		t.Errorf("read-only: %d, %q, %q", code, out, stderr)
	}
	if log := h.Log(); strings.Contains(log, s3test.SecretKey) {
		t.Error("the secret key is in the log")
	}
}

// TestSandboxMountRefused checks that a mount that is not possible is refused with the reason, and leaves nothing.
func TestSandboxMountRefused(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h, s3 := mountHost(t)
	for text, args := range map[string][]string{
		"there is no bucket nowhere":      {"--s3", "s3://nowhere/x:/data:mount"},
		"there is no secret \"other\"":    {"--s3", "s3://" + s3.Bucket + ":/data:mount", "--s3-secret", "other"},
		"neither downloaded first":        {"--s3", "s3://" + s3.Bucket + ":/data:mount:init"},
		"only a mount can":                {"--s3", "s3://" + s3.Bucket + ":/data:ro"},
		"needs a bucket":                  {"--s3", "s3:/data:mount"},
		"overlap":                         {"--s3", "s3://" + s3.Bucket + ":/data/x:mount", "-v", "v:/data"},
		"which the sandbox needs":         {"--s3", "s3://" + s3.Bucket + ":/etc:mount"},
		"S3 does not know the access key": {"--s3", "s3://" + s3.Bucket + ":/data:mount", "--s3-secret", "wrong"},
		"invalid prefix":                  {"--s3", "s3://" + s3.Bucket + "/a/../b:/data:mount"},
	} {
		if strings.Contains(text, "access key") {
			h.Must("secret", "set", "wrong", "AWS_ACCESS_KEY_ID=AKIAWRONGWRONGWRONGW",
				"AWS_SECRET_ACCESS_KEY="+s3test.SecretKey)
		}
		_, stderr, code := h.Run(append([]string{"sandbox", "create"}, args...)...)
		if code == 0 || !strings.Contains(stderr, text) {
			t.Errorf("%q: %d, %s; want %q", args, code, stderr, text)
		}
	}
	if left, _ := filepath.Glob(h.Data + "/mounts/*"); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
}

// TestSandboxMountAway checks that S3 that does not answer blocks neither the rest of a sandbox nor its end, and that
// unsent data is kept, reported, and stored later.
func TestSandboxMountAway(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h, s3 := mountHost(t)
	place := "s3://" + s3.Bucket + "/data:/data:mount"
	h.Must("sandbox", "create", "--name", "away", "--s3", place)
	away := h.Sandbox("away")
	// A program that has begun to write continues. Others get an error.
	h.Must("sandbox", "exec", "--detach", "away", "--", "sh", "-c",
		"exec 3>/data/kept.txt; printf ke >&3; touch /tmp/begun; while [ ! -e /tmp/go ]; do sleep 0.1; done; printf "+
			"pt >&3; touch /tmp/done; sleep 1000")
	wait := "while [ ! -e /tmp/$0 ]; do sleep 0.1; done"
	h.Must("sandbox", "exec", "away", "--", "sh", "-c", wait, "begun")
	s3.Stop()
	if got := h.Must("sandbox", "exec", "away", "--", "sh", "-c",
		"cat /data/x >/dev/null 2>&1 || echo refused; echo fine > /tmp/f; cat /tmp/f; touch /tmp/go; "+wait,
		"done"); got != "refused\nfine" {
		t.Errorf("while S3 is away: %q", got)
	}
	_, stderr, code := h.Run("sandbox", "rm", "away")
	if code != 0 {
		t.Errorf("its end: %d %s", code, stderr)
	}
	if got := h.Sandbox(away.ID); got.Status != "terminated" || got.S3 == nil ||
		!strings.Contains(got.S3.SyncError, "mounts/"+away.ID) {
		t.Errorf("it is %+v", got)
	}
	kept, _ := filepath.Glob(filepath.Join(h.Data, "mounts", away.ID, "spool", "*"))
	if len(kept) != 2 {
		t.Errorf("kept: %s", kept)
	}
	s3.Start()
	h.Must("down")
	h.Must("sandbox", "ls")
	s3.Wait("data/kept.txt", "kept")
	testenv.Try(t, func() error {
		left, _ := filepath.Glob(h.Data + "/mounts/*")
		if failure := h.Sandbox(away.ID).S3.SyncError; len(left) > 0 || failure != "" {
			return errors.Errorf("all is stored: mounts %s, error %q", left, failure)
		}
		return nil
	})
}

// TestSandboxMountSilent checks that a sandbox ends although programs in it wait for an S3 that accepts everything and
// answers nothing.
func TestSandboxMountSilent(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h, s3 := mountHost(t)
	s3.Put("data/f", "content")
	h.Must("sandbox", "create", "--name", "silent", "--s3", "s3://"+s3.Bucket+"/data:/data:mount")
	h.Must("sandbox", "exec", "silent", "--", "ls", "/data")
	s3.Silence()
	h.Must("sandbox", "exec", "--detach", "silent", "--", "sh", "-c", "while :; do touch /tmp/reads; cat /data/f; done")
	if got := h.Must("sandbox", "exec", "silent", "--", "sh", "-c",
		"while [ ! -e /tmp/reads ]; do sleep 0.1; done; echo fine > /tmp/f; cat /tmp/f"); got != "fine" {
		t.Errorf("meanwhile: %q", got)
	}
	h.Must("sandbox", "rm", "silent")
	if got := h.Must("sandbox", "ls", "-o", "name"); got != "" {
		t.Errorf("it is still there: %s", got)
	}
	if left, _ := filepath.Glob(h.Data + "/mounts/*"); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
}

// An ordinary user mounts too, with fusermount3.
func TestSandboxMountRootless(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	if _, err := exec.LookPath("fusermount3"); err != nil || os.Geteuid() != 0 {
		t.Skip("run it as root, which becomes somebody else, and apt-get install fuse3")
	}
	s3 := host.NewS3(t)
	s3.Put("data/f", "content")
	h := host.Ordinary(t)
	h.Env.Setenv("HARVEST_S3_ENDPOINT", "http://"+s3.Address)
	h.Env.Setenv("HARVEST_S3_PATH_STYLE", "true")
	h.Must("secret", "set", "aws", "AWS_ACCESS_KEY_ID="+s3test.AccessKey, "AWS_SECRET_ACCESS_KEY="+s3test.SecretKey,
		"AWS_REGION=us-east-1")
	if st, err := os.Stat("/dev/fuse"); err != nil || st.Mode().Perm()&0o006 != 0o006 {
		_, stderr, code := h.Run("run", "--s3", "s3://"+s3.Bucket+"/data:/data:mount", "--", "true")
		if code == 0 || !strings.Contains(stderr, "ordinary users may not use FUSE") ||
			!strings.Contains(stderr, "chmod 666 /dev/fuse") {
			t.Errorf("without the device: %d %s", code, stderr)
		}
		return
	}
	out := h.Must("run", "--s3", "s3://"+s3.Bucket+"/data:/data:mount", "--", "sh", "-ec",
		"cat /data/f; printf two > /data/g; chmod 600 /data/g; mv /data/g /data/h; stat -c ' %u %a' /data/h")
	if out != "content 0 600" || s3.Get("data/h") != "two" {
		t.Errorf("it says %q, and the bucket has %q", out, s3.Get("data/h"))
	}
}

// TestSandboxMountKilled checks that a sandbox continues without its mount when the mount's process is killed, and
// reports it. Written data is stored, and another sandbox sees it.
// mission: D5, A8
func TestSandboxMountKilled(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h, s3 := mountHost(t)
	place := "s3://" + s3.Bucket + "/data:/data:mount"
	h.Must("sandbox", "create", "--name", "one", "--s3", place)
	one := h.Sandbox("one")
	h.Must("sandbox", "exec", "--detach", "one", "--", "sh", "-c",
		"exec 3>/data/open.txt; printf written >&3; touch /tmp/begun; sleep 1000")
	h.Must("sandbox", "exec", "one", "--", "sh", "-c", "while [ ! -e /tmp/begun ]; do sleep 0.1; done")
	killMount(h, one.ID)
	s3.Wait("data/open.txt", "written")
	if got := h.Must("sandbox", "exec", "one", "--", "sh", "-c",
		"ls /data 2>/dev/null || echo refused; echo fine > /tmp/f; cat /tmp/f"); got != "refused\nfine" {
		t.Errorf("without its mount: %q", got)
	}
	testenv.Eventually(t, "the record reports the lost mount",
		func() bool { return h.Sandbox("one").S3.MountError != "" })
	if got := h.Must("sandbox", "get", "one"); !strings.Contains(got, "LOST: ") ||
		!strings.Contains(got, "create another sandbox") {
		t.Errorf("it is shown as %s", got)
	}
	// A new mount at the same place of this machine is not visible inside. That is why the mount is not repeated.
	files, other := filepath.Join(h.Data, "mounts", one.ID, "files"), t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(files, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(other, files, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if got := h.Must("sandbox", "exec", "one", "--", "sh", "-c",
		"ls /data 2>/dev/null || echo refused"); got != "refused" {
		t.Errorf("a new mount is seen inside, so a lost one could be had again: %q", got)
	}
	if got := h.Must("run", "--s3", place+":ro", "--", "cat", "/data/open.txt"); got != "written" {
		t.Errorf("another sandbox sees %q", got)
	}
	h.Must("sandbox", "rm", "one")
	if got := h.Sandbox(one.ID); got.S3.SyncError != "" || got.S3.MountError == "" {
		t.Errorf("it is %+v", got.S3)
	}
	if left, _ := filepath.Glob(h.Data + "/mounts/*"); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
}

// killMount kills the process of a sandbox's mount.
func killMount(h *host.Host, id string) {
	h.T.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		text, _ := os.ReadFile(file)
		if string(text) == s3mount.Name+"\x00"+filepath.Join(h.Data, "mounts", id)+"\x00" {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				h.T.Fatal(err)
			}
			return
		}
	}
	h.T.Fatal("the mount has no process")
}
