package gvisor_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/image/imagetest"
	"github.com/RelevanceAI/harvest/internal/testenv"
)

// container is a podman container with harvest as its first process, and nothing else in its root file system.
type container struct {
	t      *testing.T
	podman []string // the command and its global flags
	id     string
}

// startContainer starts the server in a container with the flags of docs/operations.md, and further ones. It is removed
// when t ends.
func startContainer(t *testing.T, data string, more ...string) *container {
	t.Helper()
	testenv.Root(t)
	testenv.RequireTool(t, "podman", "podman")
	testenv.RequireTool(t, "runc", "runc") // crun refuses to run where cgroups are hybrid
	dir, root := t.TempDir(), t.TempDir()
	for _, name := range []string{"bin", "data", "dev", "etc", "proc", "sys", "tmp"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := &container{t: t, podman: []string{"podman", "--root", dir + "/root", "--runroot", dir + "/run", "--tmpdir",
		dir + "/tmp", "--storage-driver", "vfs",
		"--cgroup-manager", "cgroupfs", "--runtime", "runc"}}
	// The limits are below the host's: raising them takes CAP_SYS_RESOURCE.
	flags := []string{"run", "--detach", "--security-opt", "seccomp=unconfined", "--network", "none", "--ulimit",
		"nofile=4096:4096", "--ulimit", "nproc=4096:4096",
		"-v", testenv.Binary(t) + ":/bin/harvest:ro", "-v", data + ":/data", "-e", "HARVEST_DATA=/data"}
	if coverage := testenv.CoverDir(); coverage != "" {
		flags = append(flags, "-v", coverage+":"+coverage, "-e", "GOCOVERDIR="+coverage)
	}
	flags = append(slices.Concat(flags, more), "--rootfs", root, "/bin/harvest", "up", "--listen", "none")
	c.id = strings.TrimSpace(c.run(flags...))
	t.Cleanup(func() { c.run("rm", "--force", "--time", "60", c.id) })
	return c
}

// command returns a podman command.
func (c *container) command(args ...string) *exec.Cmd {
	return exec.Command(c.podman[0], slices.Concat(c.podman[1:], args)...)
}

// run runs podman and returns its output.
func (c *container) run(args ...string) string {
	c.t.Helper()
	var stderr strings.Builder
	cmd := c.command(args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		c.t.Errorf("podman %q: %v\n%s%s", args, err, out, stderr.String())
	}
	return string(out)
}

// harvest runs a command in the container.
func (c *container) harvest(args ...string) string {
	c.t.Helper()
	return c.run(append([]string{"exec", c.id, "/bin/harvest"}, args...)...)
}

// finding is what doctor found out about one thing.
type finding struct {
	Name, Detail, Remedy string
	OK, Needed           bool
}

// doctor returns doctor's findings by name. They may include what the machine lacks at the moment, such as disk space:
// doctor's exit code does not count.
func (c *container) doctor() map[string]finding {
	c.t.Helper()
	out, err := c.command("exec", c.id, "/bin/harvest", "doctor", "-o", "json").Output()
	var findings []finding
	if wrong := json.Unmarshal(out, &findings); wrong != nil {
		c.t.Fatalf("doctor: %v, %v\n%s", err, wrong, out)
	}
	found := map[string]finding{}
	for _, f := range findings {
		found[f.Name] = f
	}
	return found
}

// prepareData returns a data directory with the base image.
func prepareData(t *testing.T) string {
	t.Helper()
	data := testenv.DataDir(t)
	lib := imagetest.Library(t)
	copyImage(t, lib.Root(imagetest.Base(t, lib)), filepath.Join(data, "images"), 0)
	return data
}

// TestInContainer checks that sandboxes run with weaker limits in an ordinary container, where control groups are
// mounted read-only, that they have no users of their own, which is reported, and that their ends are not failures.
//
// mission: A6
func TestInContainer(t *testing.T) {
	c := startContainer(t, prepareData(t))
	found := c.doctor()
	if f := found["cgroups"]; f.OK || f.Needed || !strings.Contains(f.Detail, "read-only") ||
		!strings.Contains(f.Remedy, "--cgroupns") {
		t.Errorf("doctor about cgroups: %+v", f)
	}
	if f := found["users of sandboxes"]; f.OK || f.Needed || !strings.Contains(f.Detail, "this machine's user 0") ||
		!strings.Contains(f.Remedy, "CAP_SYS_ADMIN") {
		t.Errorf("doctor about users: %+v", f)
	}
	if f := found["sandbox"]; !f.OK {
		t.Errorf("doctor about a trial sandbox: %+v", f)
	}
	if out := c.harvest("run", "--code", "print(6*7)"); out != "42\n" {
		t.Errorf("run printed %q", out)
	}
	id := strings.TrimSpace(c.harvest("sandbox", "create", "-o", "name"))
	if record := c.harvest("sandbox", "get", "-o", "json", id); !strings.Contains(record, "systrap shared users") {
		t.Errorf("the record of the sandbox:\n%s", record)
	}
	c.harvest("sandbox", "rm", id)
	c.harvest("down", "--sandboxes")
	c.run("wait", c.id)
	if log := c.run("logs", c.id); strings.Contains(log, "cgroup") || strings.Contains(log, "ERROR") {
		t.Errorf("the server logged:\n%s", log)
	}
}

// With the host's control groups, limits are the kernel's as outside of a container.
func TestInContainerWithCgroups(t *testing.T) {
	testenv.Long(t)
	c := startContainer(t, prepareData(t), "--cgroupns", "host", "-v", "/sys/fs/cgroup:/sys/fs/cgroup:rw")
	if out := c.harvest("run", "--memory", "256MiB", "--cpu", "0.5", "--code", "print(6*7)"); out != "42\n" {
		t.Errorf("run printed %q", out)
	}
	if f := c.doctor()["cgroups"]; !f.OK || !strings.Contains(f.Detail, "limits are held by the kernel") {
		t.Errorf("doctor about cgroups: %+v", f)
	}
	c.harvest("down", "--sandboxes")
}

// TestLiveMountInContainer checks that a bucket can be mounted live in a container with the device /dev/fuse and
// CAP_SYS_ADMIN: writes go both ways, and the mount ends with the sandbox.
//
// mission: A6, D4
func TestLiveMountInContainer(t *testing.T) {
	testenv.Long(t)
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no FUSE: load the kernel module fuse, and allow /dev/fuse")
	}
	data := prepareData(t)
	c := startContainer(t, data, "--device", "/dev/fuse", "--cap-add", "SYS_ADMIN", "-e",
		"HARVEST_S3_ENDPOINT=embedded")
	c.harvest("sandbox", "create", "--name", "box", "--s3", "s3://live/data:/data:mount")
	c.harvest("sandbox", "exec", "box", "--", "sh", "-ec", "mkdir /data/d; printf inside > /data/d/a; cat /data/d/a")
	other := []string{"run", "--s3", "s3://live/data:/data:mount", "--"}
	if out := c.harvest(append(other, "cat", "/data/d/a")...); out != "inside" {
		t.Errorf("another sandbox reads %q", out)
	}
	c.harvest(append(other, "sh", "-c", "printf other > /data/b")...)
	testenv.Eventually(t, "the first sandbox sees the file of the other", func() bool {
		return c.harvest("sandbox", "exec", "box", "--", "sh", "-c", "cat /data/b || true") == "other"
	})
	c.harvest("sandbox", "rm", "box")
	found := c.doctor()
	if f := found["mounts of S3"]; !f.OK || !strings.Contains(f.Detail, "FUSE") {
		t.Errorf("doctor about mounts of S3: %+v", f)
	}
	if f := found["users of sandboxes"]; !f.OK || !strings.Contains(f.Detail, "of its own") {
		t.Errorf("doctor about users: %+v", f)
	}
	c.harvest("down", "--sandboxes")
	c.run("wait", c.id)
	if log := c.run("logs", c.id); strings.Contains(log, "ERROR") {
		t.Errorf("the server logged:\n%s", log)
	}
}
