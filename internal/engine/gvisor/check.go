package gvisor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/cgroup"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/userns"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// Finding is one result of Check.
type Finding struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Weaker bool   `json:"weaker,omitempty"` // not OK, but sandboxes work without it
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"` // what to do if it is not OK
}

// checkTime limits the boot of the test sandbox.
const checkTime = 30 * time.Second

// Check reports which features of this machine sandboxes can use. It boots a sandbox in a temporary directory
// below dir. executable and sentry are as in Options.
func Check(ctx context.Context, dir, executable, sentry string) []Finding {
	program := cmp.Or(sentry, executable, "/proc/self/exe")
	return []Finding{checkPrivileges(), checkUsers(dir, program), checkCgroups(), checkKVM(), checkFilter(ctx, program),
		checkBoot(ctx, dir, executable, sentry)}
}

// checkFilter lets the program that contains gVisor compare the system call filter of gVisor's process with the
// one that gVisor would compile.
func checkFilter(ctx context.Context, program string) Finding {
	f := Finding{Name: "system call filter", OK: true, Detail: "compiled ahead, and the same as gVisor's own"}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Args = []string{wire.VerifyName}
	out, err := cmd.CombinedOutput()
	said := strings.TrimSpace(string(out))
	if said == wire.Verified && err == nil {
		return f
	}
	f.OK, f.Weaker = false, cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == wire.VerifyUnsupported
	f.Detail = cmp.Or(said, fmt.Sprintf("%s did not verify it: %v", program, err))
	f.Remedy = "build Harvest anew, with the version of gVisor that go.mod names"
	return f
}

func checkPrivileges() Finding {
	f := Finding{Name: "user", OK: true, Detail: "root"}
	if os.Geteuid() != 0 {
		f.Detail = "ordinary user: sandboxes run rootless, in user namespaces"
	}
	return f
}

// checkUsers reports which users of this machine sandboxes have.
func checkUsers(dir, program string) Finding {
	f := Finding{Name: "users of sandboxes", OK: true, Weaker: true,
		Detail: "each sandbox has unprivileged users of its own; volumes keep the owners of files"}
	if os.Geteuid() != 0 {
		f.Detail = "the user who runs the server, in user namespaces"
		return f
	}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = userns.Check(dir, program)
	}
	if err != nil {
		f.OK = false
		f.Detail = "sandboxes run as this machine's user 0, without its capabilities: " + err.Error()
		f.Remedy = errors.RemedyOf(err)
	}
	return f
}

func checkCgroups() Finding {
	const weak = "memory limits are watched ten times a second instead of held by the kernel, and CPU limits hold in " +
		"whole processors"
	f := Finding{Name: "cgroups", Weaker: true, Remedy: "run Harvest as root on a machine with cgroups"}
	if os.Geteuid() != 0 {
		f.Detail = "not for ordinary users: " + weak
		return f
	}
	if err := cgroup.Available("harvest-probe-" + newRef()); err != nil {
		f.Detail = weak + ": " + err.Error()
		if errors.Is(err, unix.EROFS) {
			f.Remedy = "mount cgroups writable; in a container: --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:rw"
		}
		return f
	}
	return Finding{Name: "cgroups", OK: true,
		Detail: "CPU, memory and process limits are held by the kernel (" + cgroup.Version() + ")"}
}

// checkKVM is informational: gVisor's systrap platform needs no virtualisation, and nested KVM is often broken.
func checkKVM() Finding {
	f := Finding{Name: "platform", OK: true, Detail: "systrap (needs no virtualisation)"}
	if unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) == nil {
		f.Detail += "; /dev/kvm is there, and is not used unless the configuration says platform: kvm"
	}
	return f
}

// CheckContainers reports whether containers work on this machine: it boots one in a temporary directory below dir.
// executable and tools are as in Options.
func CheckContainers(ctx context.Context, dir, executable, tools string) Finding {
	f := Finding{Name: "containers"}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	if err := trial(ctx, dir, engine.Container, Options{Executable: executable, Tools: tools}); err != nil {
		f.Detail, f.Remedy = "a trial container did not start: "+errors.Message(err), cmp.Or(errors.RemedyOf(err),
			"remove container from isolation.allowed, or read docs/isolation.md")
		return f
	}
	f.OK, f.Detail = true, "allowed by isolation.allowed; they share the kernel of this machine (docs/isolation.md); "+
		strings.Join(containersLack, "; ")
	return f
}

// checkBoot boots a sandbox without an image.
func checkBoot(ctx context.Context, dir, executable, sentry string) (f Finding) {
	f = Finding{Name: "sandbox"}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	begin := time.Now()
	err := trial(ctx, dir, engine.GVisor, Options{Executable: executable, Sentry: sentry})
	if err != nil {
		f.Detail = "a trial sandbox did not start: " + err.Error()
		f.Remedy = errors.RemedyOf(err)
		if f.Remedy == "" {
			f.Remedy = "see the detail; kernels before 4.14 and some nested containers do not allow what gVisor needs"
		}
		return f
	}
	f.OK = true
	f.Detail = fmt.Sprintf("a trial sandbox booted and ended in %d ms", time.Since(begin).Milliseconds())
	return f
}

// trial boots and destroys a sandbox of a kind, with options whose directory is below dir.
func trial(ctx context.Context, dir, kind string, o Options) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return errors.Wrapf(err, "create directory")
	}
	temp, err := os.MkdirTemp(dir, "trial-")
	if err != nil {
		return errors.Wrapf(err, "create directory")
	}
	defer os.RemoveAll(temp)
	temp, err = filepath.Abs(temp)
	if err != nil {
		return errors.Wrapf(err, "resolve directory")
	}
	o.Dir = temp
	e, err := Open(ctx, o)
	if err != nil {
		return err
	}
	defer e.Close()
	of, err := e.Isolation(kind)
	if err != nil {
		return err
	}
	w, err := of.(engine.Warmer).Warm(ctx, engine.Limits{CPU: 1, Memory: 256 << 20, Processes: 100})
	if err != nil {
		return err
	}
	return w.Destroy(ctx)
}
