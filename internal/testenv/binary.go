package testenv

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/errors"
)

// modulePath names our packages, which coverage counts.
const modulePath = "github.com/RelevanceAI/harvest"

// kept is how long binaries of earlier builds stay, since a test may still run one.
const kept = time.Hour

// built has the binaries that this process has built, or failed to.
var built struct {
	sync.Mutex
	all map[string]binary // guarded by Mutex; by package and tags
}

type binary struct {
	path string
	err  error
}

// Binary returns the path of the harvest binary: HARVEST_TEST_BINARY, or one built from the tree. It is the ordinary
// binary also in tests that run with -race, because one built with -race cannot boot gVisor. Where CoverDir is set it
// counts coverage.
func Binary(t testing.TB) string {
	t.Helper()
	return program(t, "HARVEST_TEST_BINARY", "./cmd/harvest")
}

// FaultBinary returns the path of HARVEST_TEST_FAULT_BINARY, or of a harvest binary built from the tree, that dies at the point that HARVEST_FAULT names: see package internal/fault.
func FaultBinary(t testing.TB) string {
	t.Helper()
	return program(t, "HARVEST_TEST_FAULT_BINARY", "./cmd/harvest", "harvest_faults")
}

// RaceBinary returns the path of HARVEST_TEST_RACE_BINARY, or of a harvest binary with the race detector, built from the
// tree. It cannot boot gVisor. Where CoverDir is set it counts coverage.
func RaceBinary(t testing.TB) string {
	t.Helper()
	return programOf(t, "HARVEST_TEST_RACE_BINARY", "./cmd/harvest", how{race: true})
}

// KeeperBinary returns the path of HARVEST_TEST_KEEPER, or of the program keeper built from the tree, which the program harvest brings
// along where it was built with it.
func KeeperBinary(t testing.TB) string {
	t.Helper()
	return program(t, "HARVEST_TEST_KEEPER", "./cmd/harvest/keeper")
}

// SentryBinary returns the path of HARVEST_TEST_SENTRY, or of the program sentry built from the tree, which the program harvest brings
// along beside keeper.
func SentryBinary(t testing.TB) string {
	t.Helper()
	return program(t, "HARVEST_TEST_SENTRY", "./cmd/harvest/sentry")
}

// ToolsBinary returns the path of HARVEST_TEST_TOOLS, or of the program tools built from the tree, which the program harvest brings along
// beside keeper.
func ToolsBinary(t testing.TB) string {
	t.Helper()
	return program(t, "HARVEST_TEST_TOOLS", "./cmd/harvest/tools")
}

// how says how to build a package.
type how struct {
	cover, race bool
	tags        string // separated by commas
}

// program is programOf for ordinary binaries with tags.
func program(t testing.TB, variable, pkg string, tags ...string) string {
	t.Helper()
	return programOf(t, variable, pkg, how{tags: strings.Join(tags, ",")})
}

// programOf returns the path in a variable of the environment, or that of a package of the tree, built once per process.
func programOf(t testing.TB, variable, pkg string, h how) string {
	t.Helper()
	if path := os.Getenv(variable); path != "" {
		return path
	}
	built.Lock()
	defer built.Unlock()
	h.cover = CoverDir() != ""
	name := fmt.Sprint(pkg, h)
	b, ok := built.all[name]
	if !ok {
		b.path, b.err = build(root(t), pkg, filepath.Join(os.TempDir(), "harvest-test-"+strconv.Itoa(os.Geteuid())), h)
		if built.all == nil {
			built.all = map[string]binary{}
		}
		built.all[name] = b
	}
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.path
}

// build builds a main package of the module into dir and returns the path of the binary, which no later build changes.
// Test processes that do this at the same time wait for one another; all but the first find the work done.
func build(module, pkg, dir string, h how) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", errors.Wrapf(err, "make the directory for the test binary")
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", errors.Wrapf(err, "look at the directory for the test binary")
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() {
		return "", errors.Errorf("%s is not a directory of ours", dir)
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()

	target := filepath.Join(dir, "latest-"+filepath.Base(pkg))
	args, cgo := []string{"build"}, "CGO_ENABLED=0"
	if h.race { // with the flags of go test -race, whose packages the build cache has
		target += "-race"
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	} else { // with the flags of make build
		args = append(args, "-trimpath")
	}
	if h.tags != "" {
		target += "-" + h.tags
		args = append(args, "-tags", h.tags)
	}
	if h.cover {
		target += "-cover"
		args = append(args, "-cover", "-covermode=atomic", "-coverpkg="+modulePath+"/...")
	}
	args = append(args, "-o", target, pkg)
	cmd := exec.Command("go", args...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Wrapf(err, "go %v: %s", args, out)
	}
	id, err := exec.Command("go", "tool", "buildid", target).Output()
	if err != nil {
		return "", errors.Wrapf(err, "read the build id of %s", target)
	}
	return keep(dir, target, bytes.TrimSpace(id))
}

// keep gives the binary at target a name of its own, by its build id, and removes old ones.
func keep(dir, target string, id []byte) (string, error) {
	sum := sha256.Sum256(id)
	path := filepath.Join(dir, "harvest-"+hex.EncodeToString(sum[:8]))
	if err := os.Link(target, path); err != nil && !os.IsExist(err) {
		return "", errors.Wrapf(err, "keep the test binary")
	}
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil {
		return "", errors.Wrapf(err, "mark the test binary as used")
	}
	others, err := filepath.Glob(filepath.Join(dir, "harvest-*"))
	if err != nil {
		return "", errors.Wrapf(err, "list test binaries")
	}
	for _, other := range others {
		if info, err := os.Stat(other); err == nil && now.Sub(info.ModTime()) > kept {
			// Another process may have removed it; if not, the next build tries again.
			_ = os.Remove(other)
		}
	}
	return path, nil
}

// lock takes the lock file at path, waiting for whoever has it.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, errors.Wrapf(err, "open the lock of the test binary")
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, errors.Wrapf(err, "lock the test binary")
	}
	return func() { _ = f.Close() }, nil
}
