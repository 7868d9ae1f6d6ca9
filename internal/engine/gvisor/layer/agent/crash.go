package agent

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/eventchannel"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	ucspb "gvisor.dev/gvisor/pkg/sentry/kernel/uncaught_signal_go_proto"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/usermem"

	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
)

// Limits of the reports, because programs inside can crash arbitrarily often.
const (
	fullReports = 64
	allReports  = 2048
	keptMaps    = 400
	keptCode    = 64
	keptEnv     = 128 << 10
	keptSent    = 1024
)

// marker is the environment variable in which keepers store the ID of the command.
const marker = "HARVEST_PROCESS="

// crashes reports processes that are killed by one of layer.CrashSignals. gVisor emits an event for each, on
// the task's goroutine.
type crashes struct {
	agent *agent

	mu    sync.Mutex
	count int
	sent  map[*kernel.ThreadGroup]string // last sender of one of the signals: a process, or itself
}

const itself = "itself" // not a valid process description, because those end with a PID

// sendingCalls are the system calls that send signals, with the index of the signal among their arguments.
var sendingCalls = map[string]int{"kill": 1, "tkill": 1, "tgkill": 2, "rt_sigqueueinfo": 1, "rt_tgsigqueueinfo": 2}

// watchSender records the senders of signals through the system call, because gVisor's event does not contain
// them.
func (c *crashes) watchSender(name string, own kernel.SyscallFn) kernel.SyscallFn {
	at := sendingCalls[name]
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if slices.Contains(layer.CrashSignals, syscall.Signal(args[at].Int())) {
			c.note(t, name, args[0].Int())
		}
		return own(t, number, args)
	}
}

// note records t as the sender for all processes that id addresses.
func (c *crashes) note(t *kernel.Task, call string, id int32) {
	ns, self := t.PIDNamespace(), t.ThreadGroup()
	var targets []*kernel.ThreadGroup
	if id > 0 {
		if target := ns.TaskWithID(kernel.ThreadID(id)); target != nil {
			targets = append(targets, target.ThreadGroup())
		}
	} else if call == "kill" {
		group := kernel.ProcessGroupID(-id)
		if group == 0 {
			group = ns.IDOfProcessGroup(self.ProcessGroup())
		}
		for _, tg := range ns.ThreadGroups() {
			if id == -1 || ns.IDOfProcessGroup(tg.ProcessGroup()) == group {
				targets = append(targets, tg)
			}
		}
	}
	sender := fmt.Sprintf("%s (pid %d)", t.Name(), ns.IDOfThreadGroup(self))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, tg := range targets {
		if len(c.sent) >= keptSent {
			clear(c.sent)
		}
		if c.sent[tg] = sender; tg == self {
			c.sent[tg] = itself
		}
	}
}

// Emit implements eventchannel.Emitter.
func (c *crashes) Emit(msg proto.Message) (hangup bool, err error) {
	s, ok := msg.(*ucspb.UncaughtSignal)
	if !ok || !slices.Contains(layer.CrashSignals, syscall.Signal(s.SignalNumber)) {
		return false, nil
	}
	select {
	case <-c.agent.ready:
	default:
		return false, nil
	}
	t := c.agent.kernel.TaskSet().Root.TaskWithID(kernel.ThreadID(s.Tid))
	if t == nil {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	if c.count > allReports {
		return false, nil
	}
	r := c.report(t, s)
	if c.count <= fullReports {
		describe(&r, t, s)
	}
	line, err := json.Marshal(r)
	if err == nil {
		_, err = os.Stderr.Write(append(append([]byte(layer.CrashMark), line...), '\n')) // gVisor's log
	}
	return false, err
}

// Close implements eventchannel.Emitter.
func (c *crashes) Close() error { return nil }

// report describes the crash of a process.
func (c *crashes) report(t *kernel.Task, s *ucspb.UncaughtSignal) layer.Crash {
	tg := t.ThreadGroup()
	r := layer.Crash{Time: time.Now().UTC().Format(time.RFC3339), Process: strings.ToValidUTF8(t.Name(), "?"),
		Signal: s.SignalNumber,
		PID:    int32(tg.PIDNamespace().IDOfThreadGroup(tg)), Command: commandOf(t)}
	sender := c.sent[tg]
	if delete(c.sent, tg); sender != itself {
		r.Sender = sender
	}
	if s.SignalNumber != int32(linux.SIGABRT) && sender == "" { // a signal that was sent has no address
		r.Address = fmt.Sprintf("%#x", s.FaultAddr)
		r.Access = access(t, hostarch.Addr(s.FaultAddr))
	}
	root := t.Kernel().RootPIDNamespace()
	for of := t; of != nil; of = of.Parent() {
		r.Ancestors = append(r.Ancestors, int32(root.IDOfThreadGroup(of.ThreadGroup())))
	}
	return r
}

// access makes gVisor handle a fault at the address again, and returns the result.
func access(t *kernel.Task, addr hostarch.Addr) string {
	var can []string
	var err error
	for _, try := range []struct {
		name string
		at   hostarch.AccessType
	}{{"write", hostarch.Write}, {"read", hostarch.Read}, {"execute", hostarch.Execute}} {
		e := t.MemoryManager().HandleUserFault(t, addr, try.at, hostarch.Addr(t.Arch().Stack()))
		if e == nil {
			can = append(can, try.name)
		} else {
			err = e
		}
	}
	if len(can) == 0 {
		return err.Error()
	}
	return strings.Join(can, ", ")
}

// commandOf returns the ID of the command in a process's environment.
func commandOf(t *kernel.Task) string {
	env := t.MemoryManager().EnvvStart()
	size := min(t.MemoryManager().EnvvEnd()-env, keptEnv)
	for pair := range bytes.SplitSeq(read(t, env, int(size)), []byte{0}) {
		if id, ok := bytes.CutPrefix(pair, []byte(marker)); ok {
			return strings.ToValidUTF8(string(id), "?")
		}
	}
	return ""
}

// read returns up to size bytes of a task's memory.
func read(t *kernel.Task, addr hostarch.Addr, size int) []byte {
	b := make([]byte, max(0, size))
	n, _ := t.MemoryManager().CopyIn(t, addr, b, usermem.IOOpts{IgnorePermissions: true})
	return b[:n]
}

// describe adds registers and mappings to a report.
func describe(r *layer.Crash, t *kernel.Task, s *ucspb.UncaughtSignal) {
	r.Registers = registers(s.Registers.ProtoReflect())
	r.Vector = hex.EncodeToString([]byte(*t.Arch().FloatingPointData()))
	ip := hostarch.Addr(t.Arch().IP())
	r.Code = hex.EncodeToString(read(t, ip, keptCode))
	var all bytes.Buffer
	line := t.MemoryManager().MapsCallbackFuncForBuffer(&all)
	n := 0
	t.MemoryManager().ReadMapsDataInto(t,
		mm.MapsCallbackFunc(func(start, end hostarch.Addr, access hostarch.AccessType, private string, offset uint64,
			major, minor uint32,
			inode uint64, path string) {
			has := func(addr hostarch.Addr) bool { return start <= addr && addr < end }
			if n++; n <= keptMaps || has(ip) || has(hostarch.Addr(s.FaultAddr)) {
				line(start, end, access, private, offset, major, minor, inode, path)
			}
		}))
	r.Maps = strings.Split(strings.TrimSpace(strings.ToValidUTF8(all.String(), "?")), "\n")
}

// registers returns the numbers in a message by name, for any processor architecture.
func registers(m protoreflect.Message) map[string]string {
	all := map[string]string{}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch n := v.Interface().(type) {
		case protoreflect.Message:
			for name, value := range registers(n) {
				all[name] = value
			}
		case uint64:
			all[string(field.Name())] = fmt.Sprintf("%#x", n)
		}
		return true
	})
	return all
}

// watchCrashes reports crashes from now on.
func watchCrashes(a *agent) *crashes {
	c := &crashes{agent: a, sent: map[*kernel.ThreadGroup]string{}}
	eventchannel.AddEmitter(c)
	return c
}
