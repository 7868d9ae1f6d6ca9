package testenv

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// modulePath is the module to count coverage of.
const modulePath = "github.com/RelevanceAI/harvest"

// CompilerGC is an environment variable for go build, as in the Makefile: compilers that collect garbage less often
// need a sixth less time, and up to 2 GB of memory for the largest program.
const CompilerGC = "GOGC=400"

// kept is how long binaries of earlier builds stay, because a test may still run one.
const kept = time.Hour

// built caches the binaries, or build errors, of this process.
var built struct {
	sync.Mutex
	all map[program]binary // guarded by Mutex
}

type binary struct {
	path string
	err  error
}

// program is a program that tests start. The variable can name an existing binary, which replaces the build.
type program struct {
	variable, pkg, tags string
	race                bool
	s3                  bool // embeds the program embedded, as a release does, and none of the other programs
}

var (
	harvest = program{variable: "HARVEST_TEST_BINARY", pkg: "./cmd/harvest"}
	racing  = program{variable: "HARVEST_TEST_RACE_BINARY", pkg: "./cmd/harvest", tags: "keeper", race: true, s3: true}
	faulty  = program{variable: "HARVEST_TEST_FAULT_BINARY", pkg: "./cmd/harvest", tags: "harvest_faults"}
	keeper  = program{variable: "HARVEST_TEST_KEEPER", pkg: "./cmd/harvest/keeper"}
	sentry  = program{variable: "HARVEST_TEST_SENTRY", pkg: "./cmd/harvest/sentry"}
	tools   = program{variable: "HARVEST_TEST_TOOLS", pkg: "./cmd/harvest/tools"}
	pod     = program{variable: "HARVEST_TEST_POD", pkg: "./cmd/harvest/pod"}
	server  = program{variable: "HARVEST_TEST_S3_SERVER", pkg: "./test/stubs/s3server"}

	embedded = program{variable: "HARVEST_TEST_EMBEDDED_S3", pkg: "./cmd/harvest/s3"}
)

// Programs builds the programs that tests start, for a runner of many tests. It returns the environment that
// names the binaries. module is the directory of the module. Without long, it leaves out those that only long tests
// start.
func Programs(ctx context.Context, module string, cover, long bool) (env []string, err error) {
	all := []program{harvest, server, racing, embedded, keeper, sentry, tools}
	if long {
		all = append(all, faulty)
	}
	for _, p := range all {
		path := os.Getenv(p.variable)
		if path == "" {
			if path, err = p.build(ctx, module, cover); err != nil {
				return nil, err
			}
		}
		env = append(env, p.variable+"="+path)
	}
	return env, nil
}

// Binary returns the path of the harvest binary: HARVEST_TEST_BINARY, or one built from the tree. It never has
// the race detector, because gVisor cannot boot with it. With CoverDir it counts coverage.
func Binary(t testing.TB) string {
	t.Helper()
	return harvest.path(t)
}

// RaceBinary returns the path of a harvest binary with the race detector, for runs on the fake engine. It contains no
// gVisor.
func RaceBinary(t testing.TB) string {
	t.Helper()
	return racing.path(t)
}

// FaultBinary returns the path of a harvest binary that dies at the point in HARVEST_FAULT: see package
// internal/base/fault.
func FaultBinary(t testing.TB) string {
	t.Helper()
	return faulty.path(t)
}

// KeeperBinary returns the path of the program keeper, which a released harvest contains.
func KeeperBinary(t testing.TB) string {
	t.Helper()
	return keeper.path(t)
}

// SentryBinary returns the path of the program sentry, which a released harvest contains.
func SentryBinary(t testing.TB) string {
	t.Helper()
	return sentry.path(t)
}

// ToolsBinary returns the path of the program tools, which a released harvest contains.
func ToolsBinary(t testing.TB) string {
	t.Helper()
	return tools.path(t)
}

// PodBinary returns the path of the program pod, the first process of a sandbox's pod.
func PodBinary(t testing.TB) string {
	t.Helper()
	return pod.path(t)
}

// EmbeddedS3 returns the path of the program of the embedded S3: embedded.Options.Executable. Tests that are this
// program themselves contain the server, and so have no race detector.
func EmbeddedS3(t testing.TB) string {
	t.Helper()
	return embedded.path(t)
}

// S3Server returns the path of the program s3server, which serves a directory as S3.
func S3Server(t testing.TB) string {
	t.Helper()
	return server.path(t)
}

// CommandLine builds the command line alone, without the server, in which the binary of Binary is embedded, as in a
// release. It returns the path.
func CommandLine(t testing.TB) string {
	t.Helper()
	dir, module := t.TempDir(), root(t)
	path := filepath.Join(dir, "harvest")
	overlay, err := embed(t.Context(), module, dir, map[string]string{"server": Binary(t)})
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"build", "-trimpath", "-tags", "keeper,clientonly", "-overlay", overlay, "-o", path}
	if CoverDir() != "" {
		args = append(args, "-cover", "-covermode=atomic", "-coverpkg="+modulePath+"/...")
	}
	if err := compile(t.Context(), module, "CGO_ENABLED=0", append(args, "./cmd/harvest")...); err != nil {
		t.Fatal(err)
	}
	return path
}

// embed compresses programs into dir, as make build does for package programs, and returns the path of an overlay for
// go build that puts them into that package. The keys are names of the package's files; "" means an empty file.
func embed(ctx context.Context, module, dir string, programs map[string]string) (overlay string, err error) {
	replace := map[string]string{}
	for name, path := range programs {
		packed := filepath.Join(dir, name+".zst")
		replace[filepath.Join(module, "internal/app/programs", name+".zst")] = packed
		if path == "" {
			err = os.WriteFile(packed, nil, 0o600)
		} else {
			err = compile(ctx, module, "CGO_ENABLED=0", "run", "-trimpath", "./internal/app/programs/pack", path,
				packed)
		}
		if err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", errors.Wrapf(err, "name the embedded programs")
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, errors.Wrapf(os.WriteFile(overlay, text, 0o600), "name the embedded programs")
}

// compile runs go in the directory of the module.
func compile(ctx context.Context, module, cgo string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = module, append(os.Environ(), cgo, CompilerGC)
	out, err := cmd.CombinedOutput()
	return errors.Wrapf(err, "go %v: %s", args, out)
}

// path returns the binary in the program's variable, or builds it, once in a process.
func (p program) path(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(p.variable); path != "" {
		return path
	}
	built.Lock()
	defer built.Unlock()
	b, ok := built.all[p]
	if !ok {
		b.path, b.err = p.build(context.WithoutCancel(t.Context()), root(t), CoverDir() != "")
		if built.all == nil {
			built.all = map[program]binary{}
		}
		built.all[p] = b
	}
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.path
}

// build builds the program into a directory that all tests of this user share.
func (p program) build(ctx context.Context, module string, cover bool) (string, error) {
	return build(ctx, module, p, filepath.Join(os.TempDir(), "harvest-test-"+strconv.Itoa(os.Geteuid())), cover)
}

// build builds a main package of the module into dir. It returns the path of the binary, which later builds do
// not change. Concurrent test processes wait for one another, and all but the first find the build finished.
func build(ctx context.Context, module string, p program, dir string, cover bool) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", errors.Wrapf(err, "make the directory for the test binary")
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", errors.Wrapf(err, "look at the directory for the test binary")
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() {
		return "", errors.Errorf("%s is not a directory of the tests", dir)
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	return buildLocked(ctx, module, p, dir, cover)
}

func buildLocked(ctx context.Context, module string, p program, dir string, cover bool) (string, error) {
	target := filepath.Join(dir, "latest-"+filepath.Base(p.pkg))
	// Without DWARF, which takes seconds for each program.
	args, cgo := []string{"build", "-tags", p.tags, "-ldflags=-w"}, "CGO_ENABLED=0"
	if p.tags != "" {
		target += "-" + p.tags
	}
	if p.race { // the flags of go test -race, whose packages are in the build cache
		target += "-race"
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	} else { // the flags of make build
		args = append(args, "-trimpath")
	}
	if cover {
		target += "-cover"
		args = append(args, "-cover", "-covermode=atomic", "-coverpkg="+modulePath+"/...")
	}
	if p.s3 {
		s3, err := buildLocked(ctx, module, embedded, dir, cover)
		if err != nil {
			return "", err
		}
		overlay, err := embed(ctx, module, dir, map[string]string{"keeper": "", "sentry": "", "tools": "", "s3": s3})
		if err != nil {
			return "", err
		}
		args = append(args, "-overlay", overlay)
	}
	if err := compile(ctx, module, cgo, append(args, "-o", target, p.pkg)...); err != nil {
		return "", err
	}
	id, err := exec.CommandContext(ctx, "go", "tool", "buildid", target).Output()
	if err != nil {
		return "", errors.Wrapf(err, "read the build id of %s", target)
	}
	return keep(dir, target, bytes.TrimSpace(id))
}

// keep gives the binary at target a unique name, from its build id, and removes old binaries.
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
			// Best effort: another process may have removed it, and the next build retries.
			_ = os.Remove(other)
		}
	}
	return path, nil
}

// lock takes the lock file at path and waits for its holder.
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
