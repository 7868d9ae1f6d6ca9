package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// outputBytes is the output of the commands of P5.
const outputBytes = 100_000_000

// The measures of P5.
const (
	speed        = "output"
	serverGrowth = "the server's memory grows by"
	keeperGrowth = "the keeper's memory grows by"
)

// counter counts the bytes written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// rate returns MB/s. It fails if output is missing.
func (c counter) rate(took time.Duration) (sample, error) {
	if c != outputBytes {
		return nil, errors.Errorf("%d bytes arrived instead of %d", c, outputBytes)
	}
	return sample{speed: float64(c) / 1e6 / took.Seconds()}, nil
}

// P5
func benchOutput(ctx context.Context, l *lab, r *recorder) (err error) {
	if err := l.use(ctx, 0); err != nil {
		return err
	}
	sb, destroy, err := l.create(ctx, spec.Request{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, destroy()) }()
	make := fmt.Sprintf("yes 0123456789abcdef | head -c %d > ", outputBytes)
	if err := l.exec(ctx, sb.ID, fleet.ExecRequest{Args: []string{"sh", "-c",
		make + "/var/tmp/output"}}); err != nil {
		return err
	}
	file := filepath.Join(l.dir, "output")
	if out, err := exec.CommandContext(ctx, "sh", "-c", make+file).CombinedOutput(); err != nil {
		return errors.Errorf("make a file to print: %v: %s", err, out)
	}
	defer os.Remove(file)

	rate := r.measure(speed, "MB/s")
	rate.Aim = &Aim{AtLeast: 300}
	server, keeper := r.measure(serverGrowth, "MiB"), r.measure(keeperGrowth, "MiB")
	server.Aim, keeper.Aim = &Aim{AtMost: 32}, &Aim{AtMost: 32} // a third of the output: memory does not grow with it
	ours := side{harvest, func(ctx context.Context) (sample, error) { return l.printOutput(ctx, sb) }}
	host := side{"cat on the host", func(ctx context.Context) (sample, error) {
		var got counter
		cmd := exec.CommandContext(ctx, "cat", file)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Stdout = &got
		begin := time.Now()
		if err := cmd.Run(); err != nil {
			return nil, errors.Wrapf(err, "cat")
		}
		return got.rate(time.Since(begin))
	}}
	return r.turns(ctx, r.count(3, 20), []*Measure{rate, server, keeper}, ours, host)
}

// printOutput makes a sandbox print, and measures the memory of this process, which is the server here, and of
// the keeper.
func (l *lab) printOutput(ctx context.Context, sb record.Sandbox) (sample, error) {
	keepers := family(func(cmdline string) bool {
		return strings.HasPrefix(cmdline, "harvest-keeper\x00") && strings.Contains(cmdline, sb.Handle.Ref)
	})
	if len(keepers) == 0 {
		return nil, errors.Errorf("the keeper is not found")
	}
	debug.FreeOSMemory()
	server, err := watchPeak(os.Getpid())
	if err != nil {
		return nil, err
	}
	keeper, err := watchPeak(keepers[0])
	if err != nil {
		return nil, err
	}
	var got counter
	begin := time.Now()
	if err := l.exec(ctx, sb.ID, fleet.ExecRequest{Args: []string{"cat", "/var/tmp/output"},
		Stdout: &got}); err != nil {
		return nil, err
	}
	s, err := got.rate(time.Since(begin))
	if err != nil {
		return nil, err
	}
	if s[serverGrowth], err = server(); err != nil {
		return nil, err
	}
	s[keeperGrowth], err = keeper()
	return s, err
}

// watchPeak starts to watch a process's memory. growth returns by how many MiB its peak has exceeded the current value.
func watchPeak(pid int) (growth func() (float64, error), err error) {
	const resetPeak = "5" // proc(5), clear_refs
	if err := os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "clear_refs"), []byte(resetPeak), 0); err != nil {
		return nil, errors.Wrapf(err, "watch memory")
	}
	before, err := memoryOf(pid, "status", "VmRSS")
	if err != nil {
		return nil, err
	}
	return func() (float64, error) {
		peak, err := memoryOf(pid, "status", "VmHWM")
		return max(0, float64(peak-before)) / (1 << 20), err
	}, nil
}
