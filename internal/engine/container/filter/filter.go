// Package filter compiles the system call filter of containers.
//
// It is the default profile of Docker (github.com/moby/profiles), which allows what programs use and what the kernel
// checks well, and besides that the calls by which programs make namespaces of their own: the sandboxes of coding
// agents and browsers, and builders of images, need them. They have capabilities only within those namespaces.
package filter

import (
	"cmp"
	"slices"

	"github.com/elastic/go-seccomp-bpf/arch"
	moby "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/seccomp"

	"github.com/RelevanceAI/harvest/client/errors"
)

// capabilities are those of root in a container on which rules of the profile depend.
var capabilities = []string{"CAP_SYS_CHROOT"}

// namespaces are the calls for namespaces and for mounts in them.
var namespaces = []string{"clone", "clone3", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr",
	"move_mount", "open_tree", "pivot_root", "setdomainname", "sethostname", "setns", "umount2", "unshare"}

// matchers are the comparisons of arguments that the profile uses, and those of the compiler.
var matchers = map[specs.LinuxSeccompOperator]func(uint64) seccomp.ValueMatcher{
	specs.OpEqualTo:      func(v uint64) seccomp.ValueMatcher { return seccomp.EqualTo(v) },
	specs.OpNotEqual:     func(v uint64) seccomp.ValueMatcher { return seccomp.NotEqual(v) },
	specs.OpLessThan:     func(v uint64) seccomp.ValueMatcher { return seccomp.LessThan(v) },
	specs.OpLessEqual:    func(v uint64) seccomp.ValueMatcher { return seccomp.LessThanOrEqual(v) },
	specs.OpGreaterThan:  func(v uint64) seccomp.ValueMatcher { return seccomp.GreaterThan(v) },
	specs.OpGreaterEqual: func(v uint64) seccomp.ValueMatcher { return seccomp.GreaterThanOrEqual(v) },
}

// Program returns the filter for this kind of machine. The compiler is gVisor's: that of go-seccomp-bpf compares
// numbers of system calls with arguments once a condition has failed.
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
	allowed := seccomp.NewSyscallRules()
	for _, name := range namespaces {
		if number, known := machine.SyscallNames[name]; known {
			allowed.Set(uintptr(number), seccomp.MatchAll{})
		}
	}
	sets := []seccomp.RuleSet{{Rules: allowed, Action: seccomp.Allow}}
	for _, call := range profile.Syscalls {
		if !slices.ContainsFunc(call.Names, func(name string) bool { return !slices.Contains(namespaces, name) }) {
			continue // the rule limits what is allowed above
		}
		action, rule, err := ruleOf(call)
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(sets, func(s seccomp.RuleSet) bool { return s.Action == action })
		if at < 0 {
			at = len(sets)
			sets = append(sets, seccomp.RuleSet{Rules: seccomp.NewSyscallRules(), Action: action})
		}
		for _, name := range call.Names {
			if number, known := machine.SyscallNames[name]; known && !slices.Contains(namespaces, name) {
				sets[at].Rules.Add(uintptr(number), rule)
			}
		}
	}
	sets = slices.DeleteFunc(sets, func(s seccomp.RuleSet) bool { return s.Rules.Size() == 0 })
	refused := seccomp.ReturnError.Code(uint16(unix.EPERM))
	compiled := seccomp.Program{RuleSets: sets, Options: seccomp.ProgramOptions{DefaultAction: refused,
		BadArchAction: refused}}
	instructions, _, err := compiled.Build()
	if err != nil {
		return nil, errors.Wrapf(err, "compile the filter of system calls")
	}
	program := make([]unix.SockFilter, len(instructions))
	for i, in := range instructions {
		program[i] = unix.SockFilter{Code: in.OpCode, Jt: in.JumpIfTrue, Jf: in.JumpIfFalse, K: in.K}
	}
	return program, nil
}

// ruleOf converts a rule of the profile.
func ruleOf(call specs.LinuxSyscall) (seccomp.Action, seccomp.SyscallRule, error) {
	var action seccomp.Action
	switch call.Action {
	case specs.ActAllow:
		action = seccomp.Allow
	case specs.ActErrno:
		code := uint(unix.EPERM)
		action = seccomp.ReturnError.Code(uint16(*cmp.Or(call.ErrnoRet, &code)))
	default:
		return "", nil, errors.Errorf("the profile has the action %s for %v", call.Action, call.Names)
	}
	if len(call.Args) == 0 {
		return action, seccomp.MatchAll{}, nil
	}
	var rule seccomp.PerArg
	for i := range rule {
		rule[i] = seccomp.AnyValue{}
	}
	for _, a := range call.Args {
		matcher := matchers[a.Op]
		if matcher == nil {
			return "", nil, errors.Errorf("the profile has the comparison %s for %v", a.Op, call.Names)
		}
		rule[a.Index] = matcher(a.Value)
	}
	return action, rule, nil
}
