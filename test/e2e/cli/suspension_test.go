package cli_test

import (
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestSuspension suspends sandboxes of both kinds of isolation, with and without volumes, and wakes them by requests.
// Only a sandbox of gVisor without volumes continues with its processes.
//
// mission: A5
func TestSuspension(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	for name, c := range map[string]struct {
		processes bool
		flags     []string
	}{
		"processes": {processes: true},
		"volumes":   {flags: []string{"-v", "data:/data"}},
		"container": {flags: []string{"--isolation", "container"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := host.New(t, "gvisor", host.GVisor(t))
			h.Env.Setenv("HARVEST_ISOLATION_ALLOWED", "gvisor,container")
			h.Env.Setenv("HARVEST_POOL", "0")
			host.Suspension(t, h, c.processes, func() []string {
				left, err := filepath.Glob(filepath.Join(h.Data, "sandboxes", "*"))
				if err != nil {
					t.Error(err)
				}
				return left
			}, c.flags...)
		})
	}
}
