package kill

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestKillEverything checks that the system survives SIGKILL, again and again and at any moment, of the server, the
// keepers, gVisor, and the clients. Afterwards everything works, and nothing unknown is left (newHost checks this).
// mission: A8
func TestKillEverything(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Must("image", "ls")
	const rounds = 6
	for round := range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		for i := range 3 {
			clients.Go(func() {
				_ = h.Command(ctx, "sandbox", "create", "--name", "box-"+strconv.Itoa(round)+"-"+strconv.Itoa(i), "-v",
					"files:/files").Run()
			})
			clients.Go(func() { _ = h.Command(ctx, "run", "--code", "import time; time.sleep(0.2)").Run() })
		}
		time.Sleep(time.Duration(rand.IntN(700)) * time.Millisecond)
		host.KillAll(t, h.Data)
		cancel()
		clients.Wait()
		host.KillAll(t, h.Data) // processes that the clients have started meanwhile
		if out := h.Must("run", "--code", "print(6*7)"); out != "42" {
			t.Errorf("round %d: afterwards, run prints %q", round, out)
		}
	}
	for _, name := range []string{"first", "second"} {
		h.Must("sandbox", "create", "--name", name, "-v", "files:/files")
	}
	h.Must("sandbox", "exec", "first", "--", "sh", "-c", "echo kept > /files/it")
	if out := h.Must("sandbox", "exec", "second", "--", "cat", "/files/it"); out != "kept" {
		t.Errorf("the volume has %q", out)
	}
}
