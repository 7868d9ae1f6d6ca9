package modal

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/modal/syncs"
	"github.com/RelevanceAI/harvest/internal/modal/tunnels"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// remembered is how long output can be read after the end of a sandbox.
const remembered = time.Hour

// note is a record of a sandbox's journal: the state that a restarted server needs, as JSON.
type note struct {
	Def     []byte         `json:"def,omitempty"`     // the definition of the client, without environment values
	Main    string         `json:"main,omitempty"`    // id of the process of the sandbox's own command
	Exec    string         `json:"exec,omitempty"`    // a command's ID, and its process
	Process string         `json:"process,omitempty"` //
	Box     string         `json:"box,omitempty"`     // sidecar of that command, if it runs in one
	Joined  bool           `json:"joined,omitempty"`  // stdout and stderr of that command are one stream
	Ended   *int32         `json:"ended,omitempty"`   // the exit code of the sandbox's own command
	Stopped bool           `json:"stopped,omitempty"` // the client has ended it
	Ready   int64          `json:"ready,omitempty"`   // when it became ready, in ms
	Flush   *syncs.Flush   `json:"flush,omitempty"`   // the volumes that the command flushes
	View    *view          `json:"view,omitempty"`    // a private copy of a volume
	Ports   []tunnels.Hole `json:"ports,omitempty"`   // ports that are reachable from outside
	Mount   *mounted       `json:"mount,omitempty"`   // an image mounted in it
	Blocked *bool          `json:"blocked,omitempty"` // whether the client has blocked the network meanwhile
	Settled bool           `json:"settled,omitempty"` // it has ended, and its volumes and sidecars are settled

	Input map[string]int64 `json:"input,omitempty"` // bytes read by commands, by ID; "" is the sandbox's own
}

// box is a sandbox of the Fleet with the parts that Modal adds: a command of its own, which ends the sandbox
// when it ends, and commands by ID.
type box struct {
	s       *Server
	id      string // of the Fleet
	account string
	first   bool // of the first generation
	def     *pb.Sandbox

	mu      sync.Mutex
	main    *command            // guarded by mu; nil for a sandbox without a command of its own
	execs   map[string]*command // guarded by mu; by ID
	noted   int64               // guarded by mu; number of records in the journal
	code    *int32              // guarded by mu; of main
	stopped bool                // guarded by mu
	blocked bool                // guarded by mu; the client has blocked the network
	ready   time.Time           // guarded by mu; zero until it was ready
	views   []*view             // guarded by mu
	mounts  map[string]string   // guarded by mounting; by path: where the hidden directory is kept
	ports   []tunnels.Hole      // guarded by mu

	mounting sync.Mutex // held while mounts changes

	typing sync.Mutex // held while numbered input is written
	typed  uint32     // guarded by typing; the number of the last input, as this server knows

	ended  chan struct{} // closed once result is set
	result *pb.GenericResult
}

// boxes holds the sandboxes of clients.
type boxes struct {
	s    *Server
	load sync.Mutex // held while a sandbox is loaded

	mu   sync.Mutex
	byID map[string]*box // guarded by mu
}

// openBoxes removes the journals of sandboxes without a record and loads the running sandboxes.
func (s *Server) openBoxes() error {
	bs := &boxes{s: s, byID: map[string]*box{}}
	s.boxes = bs // before any of them is loaded
	s.removeContexts()
	journals, err := s.opts.Records.IDs(s.ctx, records.Journal)
	if err != nil {
		return errors.Wrapf(err, "look for the journals of sandboxes")
	}
	all, err := s.opts.Fleet.List(s.ctx, "", record.Filter{All: true})
	if err != nil {
		return err
	}
	known := map[string]record.Sandbox{}
	var ended []record.Sandbox
	for _, sb := range all {
		known[sb.ID] = sb
	}
	for _, j := range journals {
		sb, found := known[j.ID]
		switch {
		case !found:
			if err := s.opts.Records.Delete(s.ctx, records.Journal, j); err != nil {
				logf.Warnf(s.ctx, "remove the journal of %s: %v", j.ID, err) // the next start retries
			}
		case sb.Status.Ended():
			ended = append(ended, sb)
		default:
			s.tasks.Go(func() {
				if _, err := bs.get(s.ctx, sb.Account, sb.ID); err != nil {
					logf.Warnf(s.ctx, "take up %s: %v", sb.ID, err)
				}
			})
		}
	}
	s.volumes.settled = make(chan struct{})
	s.tasks.Go(func() { s.settle(s.ctx, ended) })
	return nil
}

// get returns the account's sandbox with that id, or NotFound.
func (bs *boxes) get(ctx context.Context, account, id string) (*box, error) {
	if b := bs.find(account, id); b != nil {
		return b, nil
	}
	bs.load.Lock()
	defer bs.load.Unlock()
	if b := bs.find(account, id); b != nil {
		return b, nil
	}
	sb, err := bs.s.opts.Fleet.Get(ctx, account, id)
	if errors.KindOf(err) == errors.NotFound {
		return nil, missing("Sandbox", sandboxOf(id))
	}
	if err != nil {
		return nil, err
	}
	b := bs.make(sb)
	if err := b.replay(ctx, sb); err != nil {
		return nil, err
	}
	bs.add(b)
	return b, nil
}

// all returns the sandboxes in memory.
func (bs *boxes) all() []*box {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return slices.Collect(maps.Values(bs.byID))
}

func (bs *boxes) find(account, id string) *box {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if b := bs.byID[id]; b != nil && b.account == account {
		return b
	}
	return nil
}

func (bs *boxes) make(sb record.Sandbox) *box {
	return &box{s: bs.s, id: sb.ID, account: sb.Account, first: first(sb), def: &pb.Sandbox{},
		execs:  map[string]*command{},
		mounts: map[string]string{}, ended: make(chan struct{})}
}

// add registers b and watches it until its end.
func (bs *boxes) add(b *box) {
	bs.mu.Lock()
	bs.byID[b.id] = b
	bs.mu.Unlock()
	bs.s.tasks.Go(func() {
		b.watch(bs.s.ctx)
		bs.forget(b)
	})
}

// forget drops b some time after its end.
func (bs *boxes) forget(b *box) {
	timer := time.NewTimer(remembered)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-bs.s.ctx.Done():
	}
	bs.mu.Lock()
	delete(bs.byID, b.id)
	bs.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.execs {
		c.forget()
	}
	if b.main != nil {
		b.main.forget()
	}
}

// write adds records to the journal. Best effort: the action has already happened, and only a restarted server
// would miss the record.
func (b *box) write(ctx context.Context, notes ...note) {
	b.mu.Lock()
	defer b.mu.Unlock()
	added := make([]records.Record, len(notes))
	var err error
	for i, n := range notes {
		added[i] = records.Record{Kind: records.Journal, ID: journalOf(b.id), Number: b.noted + int64(i)}
		if added[i].Data, err = json.Marshal(n); err != nil {
			break
		}
	}
	if err == nil {
		err = b.s.opts.Records.Put(context.WithoutCancel(ctx), added...)
	}
	if err != nil {
		logf.Errorf(ctx, "record an event of %s: %v", b.id, err)
		return
	}
	b.noted += int64(len(notes))
}

func journalOf(id string) records.ID { return records.ID{ID: id} }

// noteInput records for the next server how much input each command has read. No more input arrives.
func (b *box) noteInput(ctx context.Context) {
	n := note{Input: map[string]int64{}}
	add := func(id string, c *command) {
		if at, all := c.in.passed(); c.exec != nil && at > 0 && all {
			n.Input[id] = at
		}
	}
	b.mu.Lock()
	for id, c := range b.execs {
		add(id, c)
	}
	if b.main != nil {
		add("", b.main)
	}
	b.mu.Unlock()
	if len(n.Input) == 0 {
		return
	}
	b.write(ctx, n)
}

// watch ends the sandbox when its own command ends, and publishes the end of the sandbox.
func (b *box) watch(ctx context.Context) {
	ctx = logf.With(ctx, "sandbox_id", b.id)
	ended := make(chan record.Sandbox, 1)
	go func() {
		defer close(ended)
		if sb, err := b.s.opts.Fleet.Ended(ctx, b.account, b.id); err == nil {
			ended <- sb
		}
	}()
	if b.main != nil {
		select {
		case <-b.main.done:
			b.outlive(ctx)
		case sb, ok := <-ended:
			if ok {
				b.close(ctx, sb)
			}
			return
		}
	}
	if sb, ok := <-ended; ok {
		b.close(ctx, sb)
	}
}

// outlive ends the sandbox after its own command ended, unless the end of the sandbox ended the command.
func (b *box) outlive(ctx context.Context) {
	r := b.main.result
	sb, err := b.s.opts.Fleet.Get(ctx, b.account, b.id)
	if err != nil || b.main.fault != nil || sb.Status != record.Running || r.OutOfMemory ||
		r.Reason != "" && !r.TimedOut {
		if err == nil && sb.Status == record.Running && b.s.ctx.Err() == nil {
			b.destroy(ctx)
		}
		return
	}
	code := int32(r.ReturnCode)
	b.mu.Lock()
	b.code = &code
	b.mu.Unlock()
	b.write(ctx, note{Ended: &code})
	b.destroy(ctx)
}

func (b *box) destroy(ctx context.Context) {
	if err := b.s.opts.Fleet.Destroy(ctx, b.account, b.id); err != nil && ctx.Err() == nil {
		logf.Errorf(ctx, "end a sandbox whose command has ended: %v", err)
	}
}

// close cleans up after the sandbox ended, waits for its commands, and publishes its result.
func (b *box) close(ctx context.Context, sb record.Sandbox) {
	b.mu.Lock()
	commands := make([]*command, 0, len(b.execs)+1)
	for _, c := range b.execs {
		commands = append(commands, c)
	}
	if b.main != nil {
		commands = append(commands, b.main)
	}
	views := b.views
	b.mu.Unlock()
	settled := b.s.endSidecars(ctx, b)
	b.s.tunnels.Drop(b.id)
	b.s.oldfiles.End(b.id)
	b.s.partSidecar(ctx, sb)
	for _, v := range views {
		if err := b.s.volumes.leave(ctx, b, v); err != nil {
			logf.Errorf(ctx, "commit the volume %s: %v", v.Volume, err)
			settled = false
		}
	}
	b.s.endBucket(ctx, sb)
	if settled {
		b.mu.Lock()
		b.views = nil // as replay does: they no longer hold a volume
		b.mu.Unlock()
		b.write(ctx, note{Settled: true})
	}
	for _, c := range commands {
		_ = c.await(ctx) // ends promptly
	}
	b.result = b.resultOf(sb)
	close(b.ended)
}

// resultOf returns how a sandbox ended.
func (b *box) resultOf(sb record.Sandbox) *pb.GenericResult {
	b.mu.Lock()
	code, stopped := b.code, b.stopped
	b.mu.Unlock()
	r := pb.GenericResult_builder{}
	switch {
	case sb.OutOfMemory, b.main != nil && b.main.ended() && b.main.result.OutOfMemory:
		r.Status, r.Exitcode = pb.GenericResult_GENERIC_STATUS_FAILURE, 137
		r.Exception = "the sandbox ran out of memory: " + sb.Reason
	case code != nil && *code == 0:
		r.Status = pb.GenericResult_GENERIC_STATUS_SUCCESS
	case code != nil:
		r.Status, r.Exitcode = pb.GenericResult_GENERIC_STATUS_FAILURE, *code
	case stopped:
		r.Status, r.Exitcode = pb.GenericResult_GENERIC_STATUS_TERMINATED, 137
	case sb.End == record.EndLifetime:
		r.Status, r.Exitcode, r.Exception = pb.GenericResult_GENERIC_STATUS_TIMEOUT, 124, sb.Reason
	case sb.End == record.EndIdle:
		r.Status, r.Exitcode, r.Exception = pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT, 124, sb.Reason
	case sb.Status == record.Terminated:
		r.Status, r.Exitcode = pb.GenericResult_GENERIC_STATUS_TERMINATED, 137
	case sb.Started.IsZero():
		r.Status, r.Exitcode, r.Exception = pb.GenericResult_GENERIC_STATUS_INIT_FAILURE, 1, sb.Reason
	default:
		r.Status, r.Exitcode, r.Exception = pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, 1, sb.Reason
	}
	r.Exception = inModalsIDs(r.Exception)
	return r.Build()
}

// outcome returns how the sandbox ended, after waiting at most wait. It returns nil if the sandbox still runs.
func (b *box) outcome(ctx context.Context, wait time.Duration) *pb.GenericResult {
	select {
	case <-b.ended:
		return b.result
	default:
	}
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-b.ended:
		return b.result
	case <-timer.C:
	case <-ctx.Done():
	case <-b.s.ctx.Done():
	}
	return nil
}

// command returns the command with that ID, or NotFound.
func (b *box) command(id string) (*command, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.execs[id]; c != nil {
		return c, nil
	}
	return nil, missing("Exec", id)
}
