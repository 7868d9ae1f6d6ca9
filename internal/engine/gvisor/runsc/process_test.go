package runsc

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/sandbox"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// rootlessEnv is set if the test runs in a user namespace, like a keeper of an ordinary user.
const rootlessEnv = "HARVEST_TEST_ROOTLESS"

// The death signal is the main thread's.
var _ = func() bool {
	runtime.LockOSThread()
	return true
}()

// TestMain is the process that both start, too.
func TestMain(m *testing.M) {
	if os.Args[0] == "runsc-sandbox" || os.Args[0] == "runsc-gofer" {
		confess()
		return
	}
	os.Exit(m.Run())
}

// birth is all that a process gets from its parent.
type birth struct {
	Args       []string // descriptors replaced by their files
	Env        []string
	Status     map[string]string // of /proc/self/status
	Maps       map[string]string // of users and groups
	Namespaces map[string]string
	Files      map[string]string // by descriptor
	DeathSign  int
	MemoryLock unix.Rlimit
	Leader     bool // of a session
	Program    bool // is in the mount namespace of its parent
}

// confess writes the process's birth to its log file, the first file that it receives.
func confess() {
	b := birth{Env: os.Environ(), Status: map[string]string{}, Maps: map[string]string{},
		Namespaces: map[string]string{}, Files: map[string]string{}}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		for _, part := range []string{"Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb",
			"NoNewPrivs", "Seccomp", "Umask", "SigIgn"} {
			if name == part {
				b.Status[name] = strings.TrimSpace(value)
			}
		}
	}
	for _, name := range []string{"uid_map", "gid_map", "setgroups"} {
		text, _ := os.ReadFile("/proc/self/" + name)
		b.Maps[name] = strings.Join(strings.Fields(string(text)), " ")
	}
	for _, name := range []string{"ipc", "mnt", "net", "pid", "user", "uts", "cgroup"} {
		b.Namespaces[name], _ = os.Readlink("/proc/self/ns/" + name)
	}
	for fd := range 64 {
		if target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err == nil &&
			!strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/sys/") {
			kind, _, _ := strings.Cut(target, ":[") // of pipes and sockets
			b.Files[strconv.Itoa(fd)] = kind
		}
	}
	for _, arg := range os.Args {
		name, value, ok := strings.Cut(arg, "=")
		if file := b.Files[value]; ok && file != "" &&
			(strings.HasSuffix(name, "-fd") || strings.HasSuffix(name, "-fds")) {
			arg = name + "=" + file
		}
		b.Args = append(b.Args, arg)
	}
	_, _, _ = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&b.DeathSign)), 0)
	_ = unix.Getrlimit(unix.RLIMIT_MEMLOCK, &b.MemoryLock)
	sid, _ := unix.Getsid(0)
	b.Leader = sid == unix.Getpid()
	var program unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, "/proc/self/exe", 0, unix.STATX_MNT_ID, &program); err == nil {
		mounts, _ := os.ReadFile("/proc/self/mountinfo")
		b.Program = !strings.Contains("\n"+string(mounts), fmt.Sprintf("\n%d ", program.Mnt_id))
	}
	_ = json.NewEncoder(os.NewFile(3, "log")).Encode(b)
}

// options describes the sandbox of the test in a new directory.
func options(t *testing.T, rootless bool, limits engine.Limits) Options {
	t.Helper()
	dir := testenv.DataDir(t)
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	config.RegisterFlags(fs)
	log := filepath.Join(dir, "log")
	err := fs.Parse([]string{"--root=" + filepath.Join(dir, "runsc"), "--network=none",
		fmt.Sprintf("--rootless=%t", rootless), "--ignore-cgroups", "--host-settings=ignore",
		"--overlay2=root:dir=" + dir, "--gofer-network-namespace=new",
		"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK", "--log=" + log, "--panic-log=" + log})
	if err != nil {
		t.Fatal(err)
	}
	conf, err := config.NewFromFlags(fs)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(conf.RootDir, 0o700); err != nil {
		t.Fatal(err)
	}
	spec := &specs.Spec{Version: specs.Version, Root: &specs.Root{Path: dir},
		Process: &specs.Process{Args: []string{"x"}, Cwd: "/"}, Linux: &specs.Linux{}}
	for _, ns := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace,
		specs.UTSNamespace, specs.MountNamespace, specs.UserNamespace} {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: ns})
	}
	n := uint32(1000)
	if rootless {
		n = 1
	}
	spec.Linux.UIDMappings = []specs.LinuxIDMapping{{Size: n}}
	spec.Linux.GIDMappings = []specs.LinuxIDMapping{{Size: n}}
	b, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return Options{Program: "/proc/self/exe", Config: conf, ID: "one", Bundle: dir, Spec: spec, Root: devNull(t),
		Limits: limits}
}

func devNull(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// born reads the process's description, and removes the parts that differ between any two processes.
func born(t *testing.T, o Options) birth {
	t.Helper()
	text, err := os.ReadFile(o.Config.LogFilename)
	if err != nil {
		t.Fatal(err)
	}
	var b birth
	_, last, ok := strings.Cut("\n"+string(text), "\n{")
	if err := json.Unmarshal([]byte("{"+last), &b); !ok || err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	dir := o.Bundle
	for i := range b.Args {
		b.Args[i] = strings.ReplaceAll(b.Args[i], dir, "DIR")
	}
	for fd, file := range b.Files {
		b.Files[fd] = strings.ReplaceAll(file, dir, "DIR")
	}
	// gVisor lists its flags in any order, including those that mean "none".
	slices.Sort(b.Args[1:slices.IndexFunc(b.Args, func(arg string) bool { return arg == "boot" || arg == "gofer" })])
	b.Args = slices.DeleteFunc(b.Args, func(arg string) bool { return strings.HasSuffix(arg, "-fd=-1") })
	if i := slices.Index(b.Args,
		"--total-host-memory"); i >= 0 { // the one argument that is Harvest's own: TestLimitArgs
		b.Args[i+1] = ""
	}
	for name, own := range namespaces() {
		if name != "cgroup" && b.Namespaces[name] == own {
			t.Errorf("the %s namespace is this process's", name)
		}
		if name == "cgroup" && b.Namespaces[name] != own {
			t.Error("the cgroup namespace is not this process's")
		}
		b.Namespaces[name] = ""
	}
	return b
}

func namespaces() map[string]string {
	all := map[string]string{}
	for _, name := range []string{"ipc", "mnt", "net", "pid", "user", "uts", "cgroup"} {
		all[name], _ = os.Readlink("/proc/self/ns/" + name)
	}
	return all
}

// inside tells gVisor's own code the limits.
type inside struct{ engine.Limits }

func (inside) Install(*specs.LinuxResources) error { return nil }
func (inside) Update(*specs.LinuxResources) error  { return nil }
func (inside) Uninstall() error                    { return nil }
func (inside) Join() (func(), error)               { return func() {}, nil }
func (inside) CloneIntoCgroup() (*os.File, error)  { return nil, nil }
func (inside) CPUUsage() (uint64, error)           { return 0, nil }
func (inside) MakePath(string) string              { return "" }
func (inside) CPUPeriod() (int64, error)           { return 100_000, nil }
func (inside) NumCPU() (int, error)                { return runtime.NumCPU(), nil }
func (l inside) CPUQuota() (int64, error) {
	if l.CPU == 0 {
		return -1, nil
	}
	return int64(l.CPU * 100_000), nil
}
func (l inside) MemoryLimit() (uint64, error) {
	if l.Memory == 0 {
		return 1 << 63, nil
	}
	return uint64(l.Memory), nil
}

// TestProcessIsLikeGVisors checks that the process that New starts equals the one that gVisor's own code starts:
// arguments, environment, files, users, capabilities, namespaces, death signal. The process is a copy of the test that
// describes itself.
// mission: A1
func TestProcessIsLikeGVisors(t *testing.T) {
	testenv.Root(t)
	rootless := os.Getenv(rootlessEnv) != ""
	for name, limits := range map[string]engine.Limits{
		"none": {}, "half a processor": {CPU: 0.5, Memory: 64 << 20}, "many": {CPU: 1000, Memory: 1 << 60},
	} {
		t.Run(name, func(t *testing.T) {
			theirs := options(t, rootless, limits)
			hints, err := boot.NewPodMountHints(theirs.Spec)
			if err != nil {
				t.Fatal(err)
			}
			_, err = sandbox.New(theirs.Config, &sandbox.Args{ID: theirs.ID, Spec: theirs.Spec,
				BundleDir: theirs.Bundle, IOFiles: []*os.File{theirs.Root}, MountHints: hints,
				Attached: true, GoferMountConfs: specutils.GoferMountConfFlags{{Lower: specutils.Erofs,
					Upper: specutils.NoOverlay}}, Cgroup: inside{limits}})
			if err == nil {
				t.Fatal("the test has booted")
			}
			ours := options(t, rootless, limits)
			if _, err := New(ours); err == nil || !strings.Contains(err.Error(), "before it had booted") {
				t.Fatalf("it booted, or did not start: %v", err)
			}
			want, got := born(t, theirs), born(t, ours)
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			if len(got.Args) < 20 || got.Status["Uid"] == "" || got.DeathSign != int(unix.SIGKILL) || !got.Program ||
				!slices.Contains(slices.Collect(maps.Values(got.Files)), "socket") {
				t.Errorf("it is %+v", got)
			}
			if entries, err := os.ReadDir(ours.Config.RootDir); err != nil || len(entries) != 0 {
				t.Errorf("left behind: %v, %v", entries, err)
			}
		})
	}
	if !rootless {
		inUserNamespace(t, "TestProcessIsLikeGVisors")
	}
}

// TestFileServerIsLikeGVisors checks that the file server is equal, too, except for files that make gVisor's own
// sandbox end sooner, and files that wait for its own steps.
// mission: A1
func TestFileServerIsLikeGVisors(t *testing.T) {
	testenv.Root(t)
	rootless := os.Getenv(rootlessEnv) != ""
	container := func() Options {
		o := options(t, rootless, engine.Limits{})
		o.Spec.Annotations = map[string]string{"dev.gvisor.spec.rootfs.type": "erofs",
			"dev.gvisor.spec.rootfs.source":  os.DevNull,
			"dev.gvisor.spec.rootfs.overlay": "dir=" + o.Bundle, "io.kubernetes.cri.container-type": "container",
			"io.kubernetes.cri.sandbox-id": "one"}
		o.Spec.Mounts = []specs.Mount{{Destination: "/init", Type: "erofs", Source: os.DevNull,
			Options: []string{"ro"}}, {Destination: "/v", Type: "bind", Source: o.Bundle}}
		return o
	}
	theirs := container()
	startTheirs(t, theirs)
	ours := container()
	program, err := openProgram(ours.Program)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if err := closeOnExec(); err != nil { // as New does first
		t.Fatal(err)
	}
	s := &Sandbox{opts: ours, program: program}
	confs := []MountConf{{Lower: Erofs, Upper: Anonymous}, {Lower: Erofs}, {Lower: Gofer}}
	if f, err := s.ServeFiles("one-main", ours.Bundle, ours.Spec, confs, nil); err == nil || f.Pid == 0 {
		t.Fatalf("it serves, or did not start: %v", err)
	}
	want, got := born(t, theirs), born(t, ours)
	want.Args = slices.DeleteFunc(want.Args, func(arg string) bool {
		return strings.HasPrefix(arg, "--pin-ring-fd=") || strings.HasPrefix(arg, "--sync-sentry-exit-fd=") ||
			strings.HasPrefix(arg, "--sync-chroot-fd=")
	})
	given := map[string]string{"0": "/dev/null", "1": "/dev/null", "2": "/dev/null", "3": "DIR/log",
		"4": "DIR/config.json", "5": "pipe", "6": "socket", "7": "socket"}
	for fd, file := range got.Files {
		if given[fd] != file && (file != "pipe" || given[fd] != "") { // it creates its own pipes at the start
			t.Errorf("its file %s is %s", fd, file)
		}
		delete(given, fd)
	}
	if len(given) != 0 || len(got.Env) != 0 {
		t.Errorf("it is not given %v, and has the environment %q", given, got.Env)
	}
	for _, b := range []*birth{&want, &got} {
		b.Env, b.Files, b.MemoryLock = nil, nil, unix.Rlimit{}
	}
	if d := cmp.Diff(want, got); d != "" || len(got.Args) < 20 {
		t.Errorf("it is %+v\n%s", got, d)
	}
	if !rootless {
		inUserNamespace(t, "TestFileServerIsLikeGVisors")
	}
}

// startTheirs lets gVisor's own code start the file server of a container. It fails as soon as the file server has
// described itself.
func startTheirs(t *testing.T, o Options) {
	t.Helper()
	hints, err := boot.NewPodMountHints(o.Spec)
	if err != nil {
		t.Fatal(err)
	}
	c := &container.Container{ID: "one-main", Spec: o.Spec, BundleDir: o.Bundle, Status: container.Created,
		Sandbox: &sandbox.Sandbox{ID: "one", MountHints: hints},
		Saver: container.StateFile{RootDir: o.Config.RootDir,
			ID: container.FullID{SandboxID: "one", ContainerID: "one-main"}}}
	if err := c.Saver.LockForNew(); err != nil {
		t.Fatal(err)
	}
	err = c.Saver.SaveLocked(c)
	c.Saver.UnlockOrDie()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(o.Config); err == nil {
		t.Fatal("the test serves files")
	}
	pid := c.GoferPid.Load()
	if pid == 0 {
		t.Fatal("it did not start")
	}
	if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
}

// inUserNamespace runs the test again as a keeper of an ordinary user runs.
func inUserNamespace(t *testing.T, test string) {
	t.Helper()
	const stranger = 23456
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "hvr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "test")
	b, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(program, b, 0o755)
	}
	for _, err := range []error{err, os.Mkdir(filepath.Join(dir, "tmp"), 0o700),
		os.Chown(filepath.Join(dir, "tmp"), stranger, stranger), os.Chmod(dir, 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^"+test+"$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(testenv.CleanEnv(), rootlessEnv+"=1", "TMPDIR="+filepath.Join(dir, "tmp"),
		"HOME="+filepath.Join(dir, "tmp"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 0, Gid: 0},
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: stranger, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: stranger, Size: 1}}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+test) {
		t.Errorf("in a user namespace: %v\n%s", err, out)
	}
}

func TestLimitArgs(t *testing.T) {
	t.Parallel()
	args, err := limitArgs(engine.Limits{CPU: 1.5, Memory: 1 << 20}, true)
	if text := strings.Join(args, " "); err != nil ||
		!strings.Contains(text, "--cpu-quota 150000 --cpu-period 100000 --total-memory 1048576") ||
		!strings.HasPrefix(text, "--total-host-memory 1048576 ") {
		t.Errorf("%q, %v", args, err)
	}
	args, err = limitArgs(engine.Limits{}, true)
	if text := strings.Join(args, " "); err != nil || strings.Contains(text, "quota") || strings.HasSuffix(text, " 0") {
		t.Errorf("without limits: %q, %v", args, err)
	}
}
