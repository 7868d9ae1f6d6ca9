package keeper

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/log"

	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/guest"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
)

const (
	// Reports that wait for the end of their command, and files in the directory of crashes.
	keptCrashes   = 64
	listedCrashes = 3 // per command
	maxLogRead    = 16 << 20
)

// crashes are the processes of a sandbox that crashed, according to gVisor's log.
type crashes struct {
	mu      sync.Mutex
	read    int64         // offset up to which the log has been read
	waiting []layer.Crash // crashes of commands that have not ended
}

// crashesOf returns the crashes of an ended command as one sentence, or "".
func (k *Keeper) crashesOf(c *command) string {
	k.crashes.mu.Lock()
	defer k.crashes.mu.Unlock()
	k.readCrashes()
	var all []string
	k.crashes.waiting = slices.DeleteFunc(k.crashes.waiting, func(r layer.Crash) bool {
		mine := r.Of(c.id, c.pid)
		if mine {
			all = append(all, r.String())
		}
		return mine
	})
	if n := len(all) - listedCrashes; n > 0 {
		all = append(all[:listedCrashes], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(all, ", ")
}

// readCrashes reads the new part of gVisor's log. k.crashes.mu is held.
func (k *Keeper) readCrashes() {
	f, err := os.Open(filepath.Join(k.args.Dir, guest.GVisorLog))
	if err != nil {
		return
	}
	defer f.Close()
	text, _ := io.ReadAll(io.NewSectionReader(f, k.crashes.read, maxLogRead))
	if whole := bytes.LastIndexByte(text, '\n') + 1; whole > 0 || len(text) < maxLogRead {
		text = text[:whole]
	}
	k.crashes.read += int64(len(text))
	for line := range strings.Lines(string(text)) {
		r, ok := layer.DecodeCrash(line)
		if !ok || r.Sender != "" || k.sent(r) {
			continue
		}
		k.keepCrash(r, line)
		k.crashes.waiting = append(k.crashes.waiting, r)
	}
	k.crashes.waiting = k.crashes.waiting[max(0, len(k.crashes.waiting)-keptCrashes):]
}

// sent reports whether a user has sent the signal.
func (k *Keeper) sent(r layer.Crash) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.commands {
		c.mu.Lock()
		sent := slices.Contains(c.sent, syscall.Signal(r.Signal))
		c.mu.Unlock()
		if sent && r.Of(c.id, c.pid) {
			return true
		}
	}
	return false
}

// keepCrash writes a report with registers and mappings to a file that outlives the sandbox. It deletes the
// oldest files.
func (k *Keeper) keepCrash(r layer.Crash, line string) {
	dir := k.args.Crashes
	if dir == "" || r.Registers == nil {
		return
	}
	name := time.Now().UTC().Format("20060102T150405.000000") + "-" + k.args.Ref + ".json"
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), []byte(strings.TrimPrefix(line, layer.CrashMark)), 0o600)
	}
	if err != nil {
		log.Warningf("keep the report of a crash: %v", err)
		return
	}
	kept, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, old := range kept[:max(0, len(kept)-keptCrashes)] { // file names begin with the time
		_ = os.Remove(old)
	}
}
