package gvisor_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
)

// container is a podman container with harvest as its first process, and nothing else in its root file system.
type container struct {
	t      *testing.T
	podman []string // the command and its global flags
	id     string
}

// page is the page with the command line that runs Harvest in a container.
const page = "../../../docs/operations.md"

// published returns the words of the page's command line between "docker run" and the image, and those behind the
// image.
func published(t *testing.T) (flags, command []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\ndocker run ")
	line, _, end := strings.Cut(strings.ReplaceAll(rest, "\\\n", " "), "\n")
	words := strings.Fields(line)
	image := slices.Index(words, "IMAGE")
	if !found || !end || image < 0 {
		t.Fatalf("%s has no command docker run with an IMAGE", page)
	}
	return words[:image], words[image+1:]
}

// optional returns flags that the page's table has as optional.
func optional(t *testing.T, flags string) []string {
	t.Helper()
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "\n| `"+flags+"` | optional: ") {
		t.Fatalf("%s does not have the optional flags %s: %v", page, flags, err)
	}
	return strings.Fields(flags)
}

// adapted makes the flags of the page work in tests: the data directory is data, no port of this machine is used, and
// outside of CI, --init is left out if its program is missing.
func adapted(t *testing.T, flags []string, data string) []string {
	t.Helper()
	const volume, port = "harvest:/var/lib/harvest", "127.0.0.1:7777:7777"
	for _, pair := range [][2]string{{"--volume", volume}, {"--publish", port}, {"--init", "--security-opt"}} {
		if i := slices.Index(flags, pair[0]); i < 0 || flags[i+1] != pair[1] {
			t.Fatalf("%s has the flags %q, without %s", page, flags, pair)
		}
	}
	i := slices.Index(flags, "--publish")
	flags = slices.Delete(slices.Clone(flags), i, i+2)
	flags[slices.Index(flags, volume)] = data + ":/var/lib/harvest"
	i = slices.Index(flags, "--init")
	program, err := exec.LookPath("catatonit")
	if err != nil && os.Getenv("CI") != "true" {
		return slices.Delete(flags, i, i+1)
	}
	return slices.Insert(flags, i+1, "--init-path", program)
}

// startContainer starts the server in a container with the flags of docs/operations.md, and further ones. It is removed
// when t ends.
func startContainer(t *testing.T, data string, more ...string) *container {
	t.Helper()
	testenv.Root(t)
	testenv.RequireTool(t, "podman", "podman")
	testenv.RequireTool(t, "runc", "runc") // crun refuses to run where cgroups are hybrid
	dir, root := t.TempDir(), t.TempDir()
	for _, name := range []string{"bin", "dev", "etc", "proc", "sys", "tmp"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := &container{t: t, podman: []string{"podman", "--root", dir + "/root", "--runroot", dir + "/run", "--tmpdir",
		dir + "/tmp", "--storage-driver", "vfs",
		"--cgroup-manager", "cgroupfs", "--runtime", "runc"}}
	// The limits are below the host's: raising them takes CAP_SYS_RESOURCE.
	documented, command := published(t)
	flags := append([]string{"run", "--network", "none", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096",
		"-v", testenv.Binary(t) + ":/bin/harvest:ro"}, adapted(t, documented, data)...)
	if coverage := testenv.CoverDir(); coverage != "" {
		flags = append(flags, "-v", coverage+":"+coverage, "-e", "GOCOVERDIR="+coverage)
	}
	flags = append(slices.Concat(flags, more), "--rootfs", root, "/bin/harvest")
	flags = append(flags, command...)
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
	c := startContainer(t, prepareData(t), optional(t, "--cgroupns=host --volume /sys/fs/cgroup:/sys/fs/cgroup:rw")...)
	if out := c.harvest("run", "--memory", "256MiB", "--cpu", "0.5", "--code", "print(6*7)"); out != "42\n" {
		t.Errorf("run printed %q", out)
	}
	if f := c.doctor()["cgroups"]; !f.OK || !strings.Contains(f.Detail, "limits are held by the kernel") {
		t.Errorf("doctor about cgroups: %+v", f)
	}
	c.harvest("down", "--sandboxes")
	c.run("wait", c.id) // Podman removes what it keeps of a container that ends
}

// TestLiveMountInContainer checks that a bucket can be mounted live in a container with the device /dev/fuse and
// CAP_SYS_ADMIN: writes go both ways, and the mount ends with the sandbox.
//
// mission: A6, D5
func TestLiveMountInContainer(t *testing.T) {
	testenv.Long(t)
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no FUSE: load the kernel module fuse, and allow /dev/fuse")
	}
	data := prepareData(t)
	c := startContainer(t, data, append(optional(t, "--device /dev/fuse --cap-add SYS_ADMIN"), "-e",
		"HARVEST_S3_ENDPOINT=embedded")...)
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
