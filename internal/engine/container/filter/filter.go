// Package filter compiles the system call filter of containers.
//
// It is the default profile of Docker (github.com/moby/profiles), which allows what programs use and what the kernel
// checks well, and besides that the calls by which programs make namespaces of their own: the sandboxes of coding
// agents and browsers, and builders of images, need them. They have capabilities only within those namespaces.
package filter

import (
	"slices"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	moby "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// capabilities are those of root in a container on which rules of the profile depend.
var capabilities = []string{"CAP_SYS_CHROOT"}

// namespaces are the calls for namespaces and for mounts in them.
var namespaces = []string{"clone", "clone3", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr",
	"move_mount", "open_tree", "pivot_root", "setdomainname", "sethostname", "setns", "umount2", "unshare"}

// operations are the comparisons of arguments that the profile uses, and those of the compiler.
var operations = map[specs.LinuxSeccompOperator]seccomp.Operation{
	specs.OpEqualTo: seccomp.Equal, specs.OpNotEqual: seccomp.NotEqual, specs.OpLessThan: seccomp.LessThan,
	specs.OpLessEqual: seccomp.LessOrEqual, specs.OpGreaterThan: seccomp.GreaterThan,
	specs.OpGreaterEqual: seccomp.GreaterOrEqual,
}

// Program returns the filter for this kind of machine.
func Program() ([]unix.SockFilter, error) {
	profile, err := moby.GetDefaultProfile(&specs.Spec{Process: &specs.Process{
		Capabilities: &specs.LinuxCapabilities{Bounding: capabilities}}})
	if err != nil {
		return nil, errors.Wrapf(err, "read the profile of system calls")
	}
	machine, err := arch.GetInfo("")
	if err != nil {
		return nil, errors.Wrapf(err, "find the system calls of this machine")
	}
	policy := seccomp.Policy{DefaultAction: seccomp.ActionErrno,
		Syscalls: []seccomp.SyscallGroup{{Action: seccomp.ActionAllow, Names: namespaces}}}
	done := map[string]bool{}
	for _, name := range namespaces {
		done[name] = true
	}
	for _, call := range profile.Syscalls {
		if !slices.ContainsFunc(call.Names, func(name string) bool { return !slices.Contains(namespaces, name) }) {
			continue // the rule limits what is allowed above
		}
		group, err := groupOf(call, func(name string) bool {
			_, known := machine.SyscallNames[name]
			return known && !slices.Contains(namespaces, name) && !(done[name] && len(call.Args) == 0)
		})
		if err != nil {
			return nil, err
		}
		for _, name := range group.Names {
			done[name] = true
		}
		policy.Syscalls = append(policy.Syscalls, group)
	}
	instructions, err := policy.Assemble()
	if err != nil {
		return nil, errors.Wrapf(err, "compile the filter of system calls")
	}
	raw, err := bpf.Assemble(instructions)
	if err != nil {
		return nil, errors.Wrapf(err, "assemble the filter of system calls")
	}
	program := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		program[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return program, nil
}

// groupOf converts a rule of the profile for the system calls that use accepts.
func groupOf(call specs.LinuxSyscall, use func(name string) bool) (seccomp.SyscallGroup, error) {
	var g seccomp.SyscallGroup
	switch {
	case call.Action == specs.ActAllow:
		g.Action = seccomp.ActionAllow
	case call.Action == specs.ActErrno && call.ErrnoRet != nil:
		g.Action = seccomp.ActionErrno | seccomp.Action(*call.ErrnoRet)
	default:
		return g, errors.Errorf("the profile has the action %s for %v", call.Action, call.Names)
	}
	var conditions seccomp.ArgumentConditions
	for _, a := range call.Args {
		op, known := operations[a.Op]
		if !known {
			return g, errors.Errorf("the profile has the comparison %s for %v", a.Op, call.Names)
		}
		conditions = append(conditions, seccomp.Condition{Argument: uint32(a.Index), Operation: op, Value: a.Value})
	}
	for _, name := range call.Names {
		switch {
		case !use(name):
		case len(conditions) == 0:
			g.Names = append(g.Names, name)
		default:
			g.NamesWithCondtions = append(g.NamesWithCondtions,
				seccomp.NameWithConditions{Name: name, Conditions: conditions})
		}
	}
	return g, nil
}
