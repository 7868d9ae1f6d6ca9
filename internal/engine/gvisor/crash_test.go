package gvisor_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
)

// crashing is a program that dies in the way that its argument names. Its vector registers have a known content.
const crashing = `
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
	char *way = argv[1];
	long zero = argc - 2;
	asm volatile("movq %0, %%xmm7" : : "r"(0x1122334455667788L) : "xmm7");
	if (!strcmp(way, "SEGV")) *(volatile int *)(0x1234000 + zero) = 1;
	if (!strcmp(way, "BUS")) { int fd = open("/tmp/empty", 0102, 0600); *(volatile int *)mmap(0, 4096, 3, 1, fd, 0) = 1; }
	if (!strcmp(way, "FPE")) asm volatile("cqo; idivq %0" : : "r"(zero) : "rax", "rdx", "cc");
	if (!strcmp(way, "ILL")) __builtin_trap();
	if (!strcmp(way, "TRAP")) asm volatile("int3");
	abort();
}
`

func TestCrashesAreReported(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	sb := create(t, open(t, dir), engine.Spec{ID: "s"})
	if exit, out := run(t, sb, "sh", "-c", `printf %s "$1" >/tmp/c.c && gcc -O1 -w -o /tmp/crasher /tmp/c.c 2>&1`, "sh",
		crashing); exit.Code != 0 {
		t.Fatal(out)
	}
	for name, sig := range map[string]syscall.Signal{"SEGV": syscall.SIGSEGV, "BUS": syscall.SIGBUS,
		"FPE": syscall.SIGFPE, "ILL": syscall.SIGILL, "TRAP": syscall.SIGTRAP,
		"ABRT": syscall.SIGABRT} {
		want := regexp.MustCompile(`^process crasher \(pid [1-9][0-9]*\) died of SIG` + name +
			`( at address 0x[0-9a-f]+)?$`)
		exit, out := run(t, sb, "/tmp/crasher", name)
		if exit.Code != 128+int(sig) || exit.Signal != name || !want.MatchString(exit.Crashed) {
			t.Errorf("%s: %+v, %s", name, exit, out)
		}
		// A shell reports its child's end as a number alone.
		exit, out = run(t, sb, "sh", "-c", "/tmp/crasher "+name+"; echo $?; exit 139")
		if exit.Code != 139 || exit.Signal != "" || !want.MatchString(exit.Crashed) {
			t.Errorf("%s, as a child: %+v, %s", name, exit, out)
		}
	}
	if exit, _ := run(t, sb, "sh", "-c",
		"kill -SEGV $$"); !regexp.MustCompile(`^process sh \(pid [0-9]+\) died of SIGSEGV$`).MatchString(exit.Crashed) {
		t.Errorf("it sends itself the signal: %+v", exit)
	}
	for what, script := range map[string]string{
		"another process":   `sleep 1000 & kill -SEGV $!; wait $!; exit 139`,
		"its process group": `setsid sleep 1000 & until kill -ABRT -$! 2>/dev/null; do :; done; wait $!; exit 1`,
		"nothing":           `exit 139`,
	} {
		if exit, out := run(t, sb, "sh", "-c", script); exit.Crashed != "" {
			t.Errorf("%s sends the signal: %+v, %s", what, exit, out)
		}
	}
	p, err := sb.Start(t.Context(), engine.Command{Args: []string{"sleep", "1000"}})
	if err == nil {
		err = p.Signal(t.Context(), "SEGV")
	}
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit != (engine.Exit{Code: 139, Signal: "SEGV"}) {
		t.Errorf("a user's signal: %+v, %v", exit, err)
	}
	keptReport(t, dir, sb)
}

// keptReport checks the reports, which outlive the sandbox.
func keptReport(t *testing.T, dir string, sb engine.Sandbox) {
	t.Helper()
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept, err := filepath.Glob(filepath.Join(dir, "crashes", "*.json"))
	if err != nil || len(kept) != 13 {
		t.Errorf("%d reports are kept, %v", len(kept), err)
	}
	seen := false
	for _, name := range kept {
		b, err := os.ReadFile(name)
		var r layer.Crash
		if err = errors.Join(err, json.Unmarshal(b, &r)); err != nil {
			t.Fatal(err)
		}
		switch syscall.Signal(r.Signal) {
		case syscall.SIGILL: // at an address of the program's code
			if r.Access != "read, execute" {
				t.Errorf("access at the address of SIGILL is %q", r.Access)
			}
			continue
		case syscall.SIGSEGV:
			if r.Process == "sh" {
				continue
			}
		default:
			continue
		}
		seen = true
		if r.Address != "0x1234000" || r.Access != "bad address" || r.Registers["rip"] == "" ||
			!strings.Contains(r.Vector, "8877665544332211") || len(r.Code) != 128 ||
			!strings.Contains(strings.Join(r.Maps, "\n"), "/tmp/crasher") {
			t.Errorf("a report is %s", b)
		}
	}
	if !seen {
		t.Error("no report of SIGSEGV is kept")
	}
}
