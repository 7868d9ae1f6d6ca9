package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	s3sync "github.com/RelevanceAI/harvest/internal/s3/volsync"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// rclone is the peer of P9: the usual tool for files in S3, with flags that preserve modes and links as Harvest
// does.
const rclone = "rclone"

// This program is also the delay proxy and the client of P9, each in a process of its own, because clients are
// measured as processes.
const (
	roleClient = "s3-client" // followed by a syncing
	roleDelay  = "s3-delay"  // followed by its own address and the server's
)

// Credentials of the server.
const (
	s3Key    = "AKIABENCHBENCHBENCHB"
	s3Secret = "the-secret-key-of-the-benchmark"
	s3Bucket = "bench"
)

// The tree of P9: as many files as a source tree, most of them small.
const (
	syncFiles   = 15_000
	syncDirs    = 1_500
	syncChanged = syncFiles / 100
	largeSize   = 4 << 30
)

// A restore has two ends. The wall time of a process is the first for rclone, and the second for Harvest.
const (
	treeDown = "tree down"
	there    = "until all files are there"
	durable  = "until they are on the disk"
)

// farAway is the round trip time of the rows with a remote server.
const farAway = 20 * time.Millisecond

// syncing is the task of a client.
type syncing struct {
	Dir, State, Endpoint, Prefix string
	Direction                    plan.Direction
	List                         bool // look at every object
	Packs                        bool // keep packs
}

// playRole runs a role of P9 or P10, and reports whether args name one.
func playRole(ctx context.Context, args []string) (bool, error) {
	switch {
	case len(args) == 3 && args[0] == roleDelay:
		return true, delay(ctx, args[1], args[2], farAway)
	case len(args) == 2 && args[0] == roleClient:
		var s syncing
		if err := json.Unmarshal([]byte(args[1]), &s); err != nil {
			return true, errors.Wrapf(err, "read what to do")
		}
		return true, s.run(ctx, os.Stdout)
	case len(args) == 2 && args[0] == roleListeners:
		var l listeners
		if err := json.Unmarshal([]byte(args[1]), &l); err != nil {
			return true, errors.Wrapf(err, "read what to do")
		}
		return true, l.run(ctx, os.Stdout)
	}
	return false, nil
}

func (s syncing) run(ctx context.Context, out io.Writer) error {
	b, err := object.Open(ctx, s3.Location{Bucket: s3Bucket, Prefix: s.Prefix, Region: "us-east-1",
		Endpoint: s.Endpoint, PathStyle: true,
		Credentials: s3.Credentials{AccessKeyID: s3Key, SecretAccessKey: s3Secret}})
	if err != nil {
		return err
	}
	defer b.Close()
	t, err := tree.Open(s.Dir)
	if err != nil {
		return err
	}
	defer t.Close()
	stats, err := s3sync.Sync(ctx, t, b, s3sync.Options{Direction: s.Direction, State: s.State, Owners: true,
		Mirror: true, List: s.List, Packs: s.Packs})
	if err == nil && stats.Failed > 0 {
		err = errors.Errorf("%s: %s", stats, stats.Failures[0].Reason)
	}
	if err == nil && s.Direction == plan.Down {
		_, err = fmt.Fprintln(out, int64(stats.Duration-stats.There)) // wait for the disk only, in ns
	}
	return err
}

// syncer measures both clients on the same server.
type syncer struct {
	dir      string
	endpoint string // of the server
	far      string // the same, farAway
	started  []*exec.Cmd
	program  string // path of this program; as /proc/self/exe it would be gVisor
	rclone   string
	rsync    string // compares a restored tree with its source; "" if it is not installed
	round    int    // makes directories and prefixes new: ext4 creates files slowly where others were just removed
}

// sender is one of the clients, with its own copy of the tree.
type sender struct {
	*syncer
	name   string
	prefix string // of the last upload
	source string
	far    bool // through the delay
	list   bool
	packs  bool // of Harvest only

	compared string // the source that rsync has compared
}

// P9
func benchSync(ctx context.Context, l *lab, r *recorder) (err error) {
	s := &syncer{dir: filepath.Join(l.dir, "s3")}
	defer s.stop()
	if err := s.start(ctx); err != nil {
		return err
	}
	files, large := l.opts.files, l.opts.large<<20
	if l.opts.short {
		files, large = syncFiles/100, 64<<20
	}
	if files != syncFiles || large != largeSize {
		r.note("the tree has %d files, and the large one %d MiB", files, large>>20)
	}
	if room := free(l.dir); room < 8*large { // copies: two sources, the server's, and the restored ones
		large = max(64<<20, room/8>>20<<20)
		r.note("the large file has %d MiB: the disk has no room for more", large>>20)
	}
	if s.rsync, err = exec.LookPath("rsync"); err != nil {
		r.note("what came back was compared by numbers and sizes only: rsync is not installed")
	}
	clients := []*sender{{syncer: s, name: harvest}}
	if s.rclone, err = findRclone(ctx); err != nil {
		r.missing(rclone, err)
	} else {
		clients = append(clients, &sender{syncer: s, name: rclone})
	}
	for _, c := range clients {
		c.source = filepath.Join(s.dir, "tree-"+c.name)
		if err := plant(c.source, files); err != nil {
			return err
		}
	}
	n := r.count(1, 3)
	for _, row := range []struct {
		name      string
		wall, cpu float64 // limits relative to the peer's
		run       func(*sender, context.Context) (sample, error)
	}{
		{"tree up", 0.5, 0.4, (*sender).up},
		{"nothing changed", 0.05, 0, (*sender).again},
		{"1 % changed", 0.1, 0, (*sender).changed},
		{"nothing changed, each object looked at", 0.3, 0, (*sender).listed},
		{treeDown, 0.3, 0, (*sender).down},
		{"tree up, 20 ms away", 0.5, 0, (*sender).upFar},
		{treeDown + ", 20 ms away", 0.5, 0, (*sender).downFar},
		{"tree up, with packs", 0, 0, (*sender).upPacked},
		{treeDown + " from packs", 0.1, 0, (*sender).down},
		{treeDown + " from packs, 20 ms away", 0.1, 0, (*sender).downFar},
	} {
		if err := r.syncs(ctx, n, row.name, row.wall, row.cpu, clients, row.run); err != nil {
			return err
		}
	}
	name := fmt.Sprintf("one file of %d MiB, ", large>>20)
	source := filepath.Join(s.dir, "large")
	if err := fill(source, large); err != nil {
		return err
	}
	for _, c := range clients {
		c.source = source
	}
	if err := r.syncs(ctx, r.count(1, 2), name+"up", 0.6, 0, clients, (*sender).up); err != nil {
		return err
	}
	return r.syncs(ctx, r.count(1, 2), name+"down", 0.6, 0, clients, (*sender).down)
}

// syncs measures one kind of sync.
func (r *recorder) syncs(ctx context.Context, n int, name string, wallAim, cpuAim float64, clients []*sender,
	run func(*sender, context.Context) (sample, error)) error {
	wall, cpu, rss := r.measure(name+", wall", "s"), r.measure(name+", CPU", "s"), r.measure(name+", peak RSS", "MiB")
	rss.Aim = &Aim{AtMost: 160}
	if wallAim > 0 {
		wall.Aim = &Aim{Peer: rclone, AtMost: wallAim}
	}
	if cpuAim > 0 {
		cpu.Aim = &Aim{Peer: rclone, AtMost: cpuAim}
	}
	measures := map[string]*Measure{"wall": wall, "cpu": cpu, "rss": rss}
	if strings.Contains(name, "down") {
		for _, end := range []string{there, durable} {
			measures[end] = r.measure(name+", "+end, "s")
			measures[end].Aim = &Aim{Peer: rclone, AtMost: wallAim}
		}
	}
	var sides []side
	for _, c := range clients {
		sides = append(sides, side{c.name, func(ctx context.Context) (sample, error) {
			got, err := run(c, ctx)
			if err != nil {
				return nil, err
			}
			named := sample{}
			for what, v := range got {
				named[measures[what].Name] = v
			}
			return named, nil
		}})
	}
	return r.turns(ctx, n, slices.Collect(maps.Values(measures)), sides...)
}

func (s *syncer) next(what string) string {
	s.round++
	return what + strconv.Itoa(s.round)
}

func (c *sender) state() string { return filepath.Join(c.dir, "state-"+c.name) }

// up uploads the whole tree to a new prefix.
func (c *sender) up(ctx context.Context) (sample, error) {
	if c.prefix != "" {
		if err := empty(filepath.Join(c.dir, "server", s3Bucket, c.prefix)); err != nil {
			return nil, err
		}
	}
	c.prefix = c.next(c.name)
	return c.sync(ctx, c.source, plan.Up)
}

// again uploads the unchanged tree.
func (c *sender) again(ctx context.Context) (sample, error) { return c.sync(ctx, c.source, plan.Up) }

// listed is again with a listing of the bucket, which finds changes by others. rclone always lists.
func (c *sender) listed(ctx context.Context) (sample, error) {
	c.list = true
	defer func() { c.list = false }()
	return c.again(ctx)
}

func (c *sender) upFar(ctx context.Context) (sample, error) {
	c.far = true
	defer func() { c.far = false }()
	return c.up(ctx)
}

func (c *sender) downFar(ctx context.Context) (sample, error) {
	c.far = true
	defer func() { c.far = false }()
	return c.down(ctx)
}

// upPacked is up with packs, from which a later download is filled.
func (c *sender) upPacked(ctx context.Context) (sample, error) {
	c.packs = true
	defer func() { c.packs = false }()
	return c.up(ctx)
}

// changed rewrites one file of a hundred in place, and uploads the tree.
func (c *sender) changed(ctx context.Context) (sample, error) {
	c.round++
	i := 0
	err := filepath.WalkDir(c.source, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if i++; i%(syncFiles/syncChanged) != 0 {
			return nil
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt([]byte(strconv.Itoa(c.round)), 0)
		return errors.Join(err, f.Close())
	})
	if err != nil {
		return nil, err
	}
	return c.sync(ctx, c.source, plan.Up)
}

// down restores into a new directory.
func (c *sender) down(ctx context.Context) (sample, error) {
	dir := filepath.Join(c.dir, c.next("back"))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	got, err := c.sync(ctx, dir, plan.Down)
	if err != nil {
		return nil, err
	}
	return got, errors.Join(sameSize(c.source, dir), c.compare(ctx, dir), empty(dir))
}

// compare fails if rsync finds a difference between Harvest's first restored tree and its source: contents,
// modes, owners, times, links. A peer may keep less.
func (c *sender) compare(ctx context.Context, dir string) error {
	if c.name != harvest || c.rsync == "" || c.compared == c.source {
		return nil
	}
	c.compared = c.source
	out, err := exec.CommandContext(ctx, c.rsync, "-aHXn", "--checksum", "--delete", "--itemize-changes", c.source+"/",
		dir+"/").CombinedOutput()
	if err != nil {
		return errors.Errorf("rsync: %v: %.300s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if !strings.HasSuffix(strings.TrimSpace(line), " ./") { // the root's attributes are not restored
			return errors.Errorf("what came back differs, by rsync: %.300s", line)
		}
	}
	return nil
}

// sync runs a client to its end and measures its process.
func (c *sender) sync(ctx context.Context, dir string, direction plan.Direction) (sample, error) {
	var cmd *exec.Cmd
	endpoint := c.endpoint
	if c.far {
		endpoint = c.syncer.far
	}
	if c.name == harvest {
		state := c.state()
		if direction == plan.Down {
			state += strconv.Itoa(c.round) // a new state, as on another machine
		}
		spec, err := json.Marshal(syncing{Dir: dir, State: state, Endpoint: endpoint, Prefix: c.prefix,
			Direction: direction, List: c.list, Packs: c.packs})
		if err != nil {
			return nil, err
		}
		cmd = exec.CommandContext(ctx, c.program, roleClient, string(spec))
	} else {
		from, to := dir, "s3:"+s3Bucket+"/"+c.prefix
		if direction == plan.Down {
			from, to = to, from
		}
		cmd = exec.CommandContext(ctx, c.rclone, "sync", "--config=", "--metadata", "--links", "--transfers", "64",
			"--checkers", "64", from, to)
		cmd.Env = append(os.Environ(), "RCLONE_CONFIG_S3_TYPE=s3", "RCLONE_CONFIG_S3_PROVIDER=Other",
			"RCLONE_CONFIG_S3_ENDPOINT="+endpoint,
			"RCLONE_CONFIG_S3_REGION=us-east-1", "RCLONE_CONFIG_S3_ACCESS_KEY_ID="+s3Key,
			"RCLONE_CONFIG_S3_SECRET_ACCESS_KEY="+s3Secret, "RCLONE_S3_NO_CHECK_BUCKET=true")
	}
	// The disk work of the previous sync must not delay the next one.
	if err := settleDisk(c.dir); err != nil {
		return nil, err
	}
	var output, tail bytes.Buffer
	cmd.Stdout, cmd.Stderr = &tail, &output
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, errors.Wrapf(err, "start a client")
	}
	ended := make(chan struct{})
	peak := make(chan int64, 1)
	go func() { peak <- peakOf(cmd.Process.Pid, ended) }()
	err := cmd.Wait()
	wall := time.Since(begin)
	close(ended)
	rss := <-peak
	if err != nil {
		return nil, errors.Errorf("%s: %v: %.300s", c.name, err, output.String())
	}
	got := sample{"wall": wall.Seconds()}
	if direction == plan.Down {
		if got[there], got[durable], err = c.ends(dir, begin, wall, tail.String()); err != nil {
			return nil, err
		}
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	got["cpu"], got["rss"] = cpu.Seconds(), float64(rss)/(1<<20)
	return got, nil
}

// ends returns the seconds of a restore until all files were there, and until they were on the disk. Harvest's
// process ends with the latter and reports how long it waited for it. rclone's process ends with the former;
// the wait for the disk is added here.
func (c *sender) ends(dir string, begin time.Time, wall time.Duration,
	tail string) (usable, onDisk float64, err error) {
	if c.name != harvest {
		err := settleDisk(dir)
		return wall.Seconds(), time.Since(begin).Seconds(), err
	}
	waited, err := strconv.ParseInt(strings.TrimSpace(tail), 10, 64)
	if err != nil {
		return 0, 0, errors.Errorf("%s did not say when its files were there: %.100q", c.name, tail)
	}
	return (wall - time.Duration(waited)).Seconds(), wall.Seconds(), nil
}

// peakOf samples a process's peak memory every few milliseconds until the process ends. The figure from wait
// would include this program's own memory.
func peakOf(pid int, ended <-chan struct{}) int64 {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	most := int64(0)
	for {
		if n, err := memoryOf(pid, "status", "VmHWM"); err == nil {
			most = max(most, n)
		}
		select {
		case <-ended:
			return most
		case <-tick.C:
		}
	}
}

// start serves an empty bucket, both directly and with the delay.
func (s *syncer) start(ctx context.Context) (err error) {
	if s.program, err = os.Executable(); err != nil {
		return errors.Wrapf(err, "find this program")
	}
	files := filepath.Join(s.dir, "server")
	if err := os.MkdirAll(filepath.Join(files, s3Bucket), 0o755); err != nil {
		return err
	}
	server := filepath.Join(filepath.Dir(s.program), "s3server")
	address, err := s.serve(ctx, server,
		func(address string) []string { return []string{files, address, s3Key, s3Secret} })
	if err != nil {
		return err
	}
	far, err := s.serve(ctx, s.program, func(listen string) []string { return []string{roleDelay, listen, address} })
	s.endpoint, s.far = "http://"+address, "http://"+far
	return err
}

// serve starts a program as a server on a free address, and waits until it answers.
func (s *syncer) serve(ctx context.Context, program string, args func(address string) []string) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	address := l.Addr().String()
	l.Close()
	cmd := exec.CommandContext(ctx, program, args(address)...)
	cmd.SysProcAttr, cmd.Stderr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, os.Stderr
	if err := cmd.Start(); err != nil {
		return "", errors.Wrapf(err, "start the S3")
	}
	s.started = append(s.started, cmd)
	for range 600 {
		if c, err := new(net.Dialer).DialContext(ctx, "tcp", address); err == nil {
			return address, c.Close()
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return "", err
		}
	}
	return "", errors.Errorf("the S3 does not answer")
}

func (s *syncer) stop() {
	for _, cmd := range s.started {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// findRclone builds the version of rclone in the module of peers, unless Go has it cached.
func findRclone(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "-C", "tools/peers/rclone", "tool", "-n", rclone).Output()
	if err != nil {
		return "", errors.Errorf("it cannot be built; bench must run in the repository: %v", err)
	}
	return strings.TrimSpace(string(out)), nil
}
