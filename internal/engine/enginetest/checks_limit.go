package enginetest

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: A3, A9, A11

var limitChecks = []check{
	{"limit/memory", "a sandbox that uses more than its memory ends, and that is reported as out of memory",
		limit("memory"), checkMemory},
	{"limit/memory below", "a command that stays below the limit is not disturbed", limit("memory"), checkMemoryBelow},
	{"limit/disk", "beyond the disk limit writes fail with ENOSPC, and the sandbox still works",
		limit("disk"), checkDisk},
	{"limit/processes", "beyond the limit of processes fork fails with EAGAIN, and the sandbox still works",
		limit("processes"), checkForks},
	{"limit/files", "beyond the limit of open files open fails with EMFILE", limit("files"), checkFiles},
	{"limit/volume files",
		"beyond the file limit of a volume, creating a file fails with EDQUOT or ENOSPC, and the sandbox still works",
		both(limit("volume_files"), mounts), checkVolumeFiles},
	{"limit/cpu", "a sandbox gets at most the processor time of its limit", limit("cpu"), checkCPU},
	{"limit/neighbour", "a sandbox at its limits does not disturb another one", limit("memory"), checkNeighbour},
}

func python(program string) engine.Command {
	return engine.Command{Args: []string{"python3", "-c", program}}
}

// hog allocates a GiB of memory and touches all of it.
const hog = `
import mmap
print("begin", flush=True)
blocks = []
for i in range(1024):
    m = mmap.mmap(-1, 1 << 20)
    for page in range(0, 1 << 20, 4096):
        m[page] = 1
    blocks.append(m)
print("took it all", flush=True)
`

func checkMemory(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{Limits: engine.Limits{Memory: 128 << 20}})
	c := probe.Start(t, sb, python(hog))
	exit, err := c.Wait(probe.Patient(t))
	if err != nil {
		probe.WantKind(t, "Wait of a command that ran out of memory", err, errors.Unavailable)
	}
	if strings.Contains(c.Stdout.String(), "all") || err == nil && exit.Code == 0 {
		t.Fatalf("a command took a GiB of 128 MiB: %+v, %q", exit, c.Stdout)
	}
	if exit.OutOfMemory {
		return
	}
	end, err := sb.Wait(probe.Patient(t))
	if err != nil || !end.OutOfMemory || end.Destroyed || end.Detail == "" {
		t.Errorf("the command ended with %+v and the sandbox with %+v, %v; neither says out of memory", exit, end, err)
	}
	if _, err := sb.Start(probe.Patient(t), probe.Sh("true")); !errors.Is(err, errors.Conflict) {
		t.Errorf("Start in a sandbox that ended: %v, want Conflict", err)
	}
}

func checkMemoryBelow(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{Limits: engine.Limits{Memory: 256 << 20}})
	for range 3 { // one command must release its memory for the next
		got := probe.Output(t, sb, python(strings.Replace(hog, "range(1024)", "range(100)", 1)))
		if got != "begin\ntook it all\n" {
			t.Errorf("output %q", got)
		}
	}
}

func checkDisk(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{Limits: engine.Limits{Disk: 64 << 20}})
	dir := probe.NewDir(t, sb)
	cmd := probe.Sh(`head -c 200000000 /dev/zero >big; echo "exit $?"; stat -c %s big`)
	cmd.Dir, cmd.Env = dir, map[string]string{"LC_ALL": "C"}
	c := probe.Start(t, sb, cmd)
	c.End(t)
	lines := strings.Fields(c.Stdout.String())
	if len(lines) != 3 || lines[1] == "0" || !strings.Contains(c.Stderr.String(), "No space left on device") {
		t.Fatalf("stdout %q, stderr %q; want a failure with ENOSPC", c.Stdout, c.Stderr)
	}
	if size, err := strconv.ParseInt(lines[2], 10, 64); err != nil || size > 72<<20 || size < 32<<20 {
		t.Errorf("%s bytes could be written of 64 MiB", lines[2])
	}
	probe.Start(t, sb, probe.Sh("echo works")).Expect(t, engine.Exit{}, "works\n")
	if got := probe.Script(t, sb, dir,
		`rm big; head -c 10000000 /dev/zero >small; stat -c %s small`); got != "10000000\n" {
		t.Errorf("after the large file was removed: %q", got)
	}
}

func checkForks(t *testing.T, s *suite) {
	const slack = 8 // an engine may add its own processes to the limit
	sb := s.create(t, engine.Spec{Limits: engine.Limits{Processes: 64}})
	c := probe.Start(t, sb, python(`
import errno, os, signal, time
children = []
try:
    for i in range(500):
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(0)
        children.append(pid)
    print("no limit", flush=True)
except OSError as e:
    print(len(children), errno.errorcode[e.errno], flush=True)
time.sleep(600)
`))
	c.Stdout.Until(t, "\n")
	fields := strings.Fields(c.Stdout.String())
	if n, err := strconv.Atoi(fields[0]); err != nil || n > 64+slack || n < 20 || fields[1] != "EAGAIN" {
		t.Errorf("children and error are %q, want about 60 and EAGAIN", fields)
	}
	if err := c.Kill(probe.Patient(t)); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	probe.Start(t, sb, probe.Sh(`sh -c 'echo works'; true`)).Expect(t, engine.Exit{}, "works\n")
}

func checkFiles(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{Limits: engine.Limits{Files: 100}})
	got := probe.Output(t, sb, python(`
import errno, os
files = []
try:
    for i in range(1000):
        files.append(os.open("/dev/null", os.O_RDONLY))
    print("no limit")
except OSError as e:
    print(len(files), errno.errorcode[e.errno])
`))
	fields := strings.Fields(got)
	if n, err := strconv.Atoi(fields[0]); err != nil || n > 100 || n < 80 || fields[1] != "EMFILE" {
		t.Errorf("files and error are %q, want about 97 and EMFILE", fields)
	}
}

// checkVolumeFiles creates as many small files as a member once did on a shared server.
func checkVolumeFiles(t *testing.T, s *suite) {
	const most, attempts = 1000, 31_500
	sb := s.create(t, engine.Spec{Limits: engine.Limits{VolumeFiles: most},
		Mounts: []engine.Mount{{Volume: newVolume(t, s).Name(), Path: "/vol"}}})
	got := probe.Output(t, sb, python(`
import errno, os
made = 0
try:
    for i in range(`+strconv.Itoa(attempts)+`):
        os.close(os.open("/vol/%d" % i, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        made += 1
    print(made, "no limit")
except OSError as e:
    print(made, errno.errorcode[e.errno])
`))
	fields := strings.Fields(got)
	// The limit is in force once the engine has counted.
	if n, err := strconv.Atoi(fields[0]); err != nil || n < most-10 || n > attempts/2 || fields[1] != "EDQUOT" &&
		fields[1] != "ENOSPC" {
		t.Errorf("files and error are %q, want about %d and EDQUOT or ENOSPC", fields, most)
	}
	probe.Start(t, sb, probe.Sh("echo works; cat /vol/0")).Expect(t, engine.Exit{}, "works\n")
}

func checkCPU(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{Limits: engine.Limits{CPU: 0.5}})
	// Two processes work as fast as they can for 4 seconds. The shortest time of a piece of work is its cost
	// without waiting. Processor time as counted inside a sandbox may include waiting. A busy machine only
	// reduces the result.
	got := probe.Output(t, sb, python(`
import os, time
end = time.monotonic() + 4
r, w = os.pipe()
child = os.fork()
pieces, least, now = 0, 1.0, time.monotonic()
while now < end:
    for i in range(10000):
        pass
    before, now = now, time.monotonic()
    pieces, least = pieces + 1, min(least, now - before)
if child == 0:
    os.write(w, str(pieces).encode())
    os._exit(0)
print((pieces + int(os.read(r, 100))) * least)
`))
	used, err := strconv.ParseFloat(strings.TrimSpace(got), 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f s of processor time in 4 s", used)
	if used > 4*0.5*2 { // an engine may count the waiting of throttled processes
		t.Errorf("%.1f s of processor time in 4 s, with half a core", used)
	}
}

// bombs use as much of a resource as a sandbox allows, and try to use more until they are ended. says is the
// output at the limit. If it is "", the sandbox ends at the limit.
var bombs = []struct {
	limit   string
	limits  engine.Limits
	program string
	says    string
}{
	{"memory", engine.Limits{Memory: 128 << 20}, hog, ""},
	{"processes", engine.Limits{Processes: 100, Memory: 1 << 30}, `
import errno, os
told = False
while True:
    try:
        os.fork()
    except OSError as e:
        if not told:
            told = True
            print(errno.errorcode[e.errno], flush=True)
`, "EAGAIN\n"},
	{"disk", engine.Limits{Disk: 64 << 20}, `
import errno, os
n = 0
while True:
    try:
        with open("/tmp/%d" % n, "wb", buffering=0) as f:
            while f.write(bytes(1 << 20)): pass
    except OSError as e:
        n += 1
        if n == 1: print(errno.errorcode[e.errno], flush=True)
`, "ENOSPC\n"},
}

func checkNeighbour(t *testing.T, s *suite) {
	neighbour := s.create(t, engine.Spec{})
	works := func() {
		for range 5 {
			probe.Start(t, neighbour, probe.Sh("echo works")).Expect(t, engine.Exit{}, "works\n")
		}
	}
	for _, b := range bombs {
		if !slices.Contains(s.engine.Capabilities().Limits, b.limit) {
			continue
		}
		sb := s.create(t, engine.Spec{Limits: b.limits})
		c := probe.Start(t, sb, python(b.program))
		if b.says != "" {
			c.Stdout.Until(t, b.says)
		}
		works()
		if err := sb.Destroy(probe.Patient(t)); err != nil {
			t.Errorf("Destroy of a sandbox at its limit of %s: %v", b.limit, err)
		}
		_, _ = c.Wait(probe.Patient(t)) // other checks cover its result
		works()
	}
	if list, err := s.engine.List(probe.Patient(t)); err != nil || len(list) < 1 {
		t.Errorf("List: %+v, %v", list, err)
	}
}
