package main

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Everything is killed with -9, again and again and at any moment: the server, the processes that keep sandboxes, gVisor, and
// the clients. Afterwards everything works, and nothing is left that nobody knows (newHost looks).
// mission: A8
func TestKillEverything(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gvisor", gvisorSetup(t))
	h.must("image", "ls")
	const rounds = 6
	for round := range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		for i := range 3 {
			clients.Go(func() {
				_ = h.command(ctx, "sandbox", "create", "--name", "box-"+strconv.Itoa(round)+"-"+strconv.Itoa(i), "-v", "files:/files").Run()
			})
			clients.Go(func() { _ = h.command(ctx, "run", "--code", "import time; time.sleep(0.2)").Run() })
		}
		time.Sleep(time.Duration(rand.IntN(700)) * time.Millisecond)
		killAll(t, h.data)
		cancel()
		clients.Wait()
		killAll(t, h.data) // what the clients have started meanwhile
		if out := h.must("run", "--code", "print(6*7)"); out != "42" {
			t.Errorf("round %d: afterwards, run prints %q", round, out)
		}
	}
	for _, name := range []string{"first", "second"} {
		h.must("sandbox", "create", "--name", name, "-v", "files:/files")
	}
	h.must("sandbox", "exec", "first", "--", "sh", "-c", "echo kept > /files/it")
	if out := h.must("sandbox", "exec", "second", "--", "cat", "/files/it"); out != "kept" {
		t.Errorf("the volume has %q", out)
	}
}

// killAll kills the processes that have the data directory in their arguments or environment, but this one.
func killAll(t *testing.T, data string) {
	t.Helper()
	for found := true; found; time.Sleep(10 * time.Millisecond) { // one that was just beginning has the next turn
		dirs, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			t.Fatal(err)
		}
		found = false
		for _, dir := range dirs {
			args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			env, _ := os.ReadFile(filepath.Join(dir, "environ"))
			pid, _ := strconv.Atoi(filepath.Base(dir))
			if pid > 1 && pid != os.Getpid() && (bytes.Contains(args, []byte(data)) || bytes.Contains(env, []byte("HARVEST_DATA="+data))) {
				found = true
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}
