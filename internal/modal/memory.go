package modal

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/checkpoint"
	"github.com/RelevanceAI/harvest/internal/modal/apps"
)

// memoryKept is how long a memory snapshot is kept, as at Modal: https://modal.com/docs/guide/sandbox-snapshots
// (snapshot retention).
const memoryKept = 7 * 24 * time.Hour

// Prefixes of the IDs of memory snapshots: the Fleet's and the clients'.
const (
	checkpointPrefix = "chk_"
	memoryID         = "sn-"
)

func memoryOf(checkpoint string) string {
	return memoryID + strings.ToUpper(strings.TrimPrefix(checkpoint, checkpointPrefix))
}

// checkpointOf is the inverse of memoryOf.
func checkpointOf(id string) (string, error) {
	rest, ok := strings.CutPrefix(id, memoryID)
	if _, err := ulid.ParseStrict(rest); !ok || err != nil || len(rest) != ulidLength {
		return "", missing("SandboxSnapshot", id)
	}
	return checkpointPrefix + strings.ToLower(rest), nil
}

// remains is the data about a sandbox that a memory snapshot holds in addition to the Fleet's.
type remains struct {
	Def    []byte            `json:"def"`              // as the client defined it, without environment values
	Main   string            `json:"main,omitempty"`   // id of the process of the sandbox's own command
	Mounts map[string]string `json:"mounts,omitempty"` // mounts of the box
	Key    string            `json:"key,omitempty"`    // digest of the request's key, which identifies a repetition
}

// TaskSnapshotMemory implements TaskCommandRouter.
func (r *router) TaskSnapshotMemory(ctx context.Context,
	req *pb.TaskSnapshotMemoryRequest) (*pb.TaskSnapshotMemoryResponse, error) {
	b, err := r.box(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	id, err := r.s.keepMemory(ctx, b, req.GetIdempotencyKey())
	return pb.TaskSnapshotMemoryResponse_builder{SnapshotId: id}.Build(), err
}

// SandboxSnapshot implements ModalClient. It is the first generation's request. The snapshot is complete when
// it returns.
func (c *control) SandboxSnapshot(ctx context.Context,
	req *pb.SandboxSnapshotRequest) (*pb.SandboxSnapshotResponse, error) {
	b, err := c.s.box(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	id, err := c.s.keepMemory(ctx, b, callerOf(ctx).key)
	return pb.SandboxSnapshotResponse_builder{SnapshotId: id}.Build(), err
}

// SandboxSnapshotWait implements ModalClient.
func (c *control) SandboxSnapshotWait(ctx context.Context,
	req *pb.SandboxSnapshotWaitRequest) (*pb.SandboxSnapshotWaitResponse, error) {
	if _, err := c.s.memory(ctx, req.GetSnapshotId()); err != nil {
		return nil, err
	}
	return pb.SandboxSnapshotWaitResponse_builder{Result: succeeded()}.Build(), nil
}

// SandboxSnapshotGet implements ModalClient. All snapshots are of the second generation.
func (c *control) SandboxSnapshotGet(ctx context.Context,
	req *pb.SandboxSnapshotGetRequest) (*pb.SandboxSnapshotGetResponse, error) {
	if _, err := c.s.memory(ctx, req.GetSnapshotId()); err != nil {
		return nil, err
	}
	return pb.SandboxSnapshotGetResponse_builder{
		SnapshotId: req.GetSnapshotId(), HandleMetadata: pb.SandboxSnapshotHandleMetadata_builder{IsV2: true}.Build(),
	}.Build(), nil
}

// memory returns the caller's snapshot with that ID, or NotFound if this protocol made no such snapshot.
func (s *Server) memory(ctx context.Context, id string) (checkpoint.Checkpoint, error) {
	ref, err := checkpointOf(id)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	c, err := s.opts.Fleet.Checkpoints().Find(callerOf(ctx).Account, ref)
	if errors.Is(err, errors.NotFound) || err == nil && c.Sandbox.Tags[tagApp] == "" {
		err = errors.Remedy(missing("SandboxSnapshot", id),
			"make another one of a running sandbox: snapshots of memory are kept for %d days",
			int(memoryKept.Hours()/24))
	}
	return c, err
}

// keepMemory takes a snapshot of a sandbox's memory and files, once for each idempotency key, and ends the
// sandbox, as the protocol demands.
func (s *Server) keepMemory(ctx context.Context, b *box, key string) (string, error) {
	ctx = context.WithoutCancel(ctx)
	if key == "" {
		return s.keepMemoryNow(ctx, b, "")
	}
	key = digestID("", callerOf(ctx).KeyID, key)
	return once2(ctx, s, b.id+" memory "+key, func() (string, error) { return s.keepMemoryNow(ctx, b, key) })
}

func (s *Server) keepMemoryNow(ctx context.Context, b *box, key string) (string, error) {
	if id := s.keptBefore(b, key); id != "" {
		return id, b.terminate(ctx)
	}
	if b.outcome(ctx, 0) != nil {
		return "", withCode(errors.Newf(errors.Gone, "the sandbox has ended"), notFound)
	}
	if !b.def.GetEnableSnapshot() {
		return "", errors.Remedy(errors.Newf(errors.Conflict, "Snapshots of memory are not enabled for this sandbox"),
			"create it with experimental_enable_snapshot")
	}
	left, err := b.remains(key)
	if err != nil {
		return "", err
	}
	c, err := s.opts.Fleet.Checkpoint(ctx, b.account, b.id, fleet.CheckpointOptions{Keep: memoryKept, Note: left})
	if err != nil {
		return "", err
	}
	if err := b.terminate(ctx); err != nil { // the snapshot exists, and the end of the sandbox continues
		logf.Errorf(ctx, "end a sandbox whose memory was kept: %v", err)
	}
	return memoryOf(c.ID), nil
}

// keptBefore returns the snapshot that an earlier server made for a repeated request, "" without one.
func (s *Server) keptBefore(b *box, key string) string {
	if key == "" {
		return ""
	}
	for _, c := range s.opts.Fleet.Checkpoints().List(b.account) {
		var left remains
		if c.Sandbox.ID == b.id && json.Unmarshal(c.Note, &left) == nil && left.Key == key {
			return memoryOf(c.ID)
		}
	}
	return ""
}

// remains encodes the data about b that a memory snapshot holds.
func (b *box) remains(key string) ([]byte, error) {
	def := proto.CloneOf(b.def)
	def.SetEnvironmentVariables(nil)
	encoded, err := proto.Marshal(def)
	if err != nil {
		return nil, errors.Wrapf(err, "encode a sandbox")
	}
	left := remains{Def: encoded, Key: key}
	b.mounting.Lock()
	defer b.mounting.Unlock()
	left.Mounts = maps.Clone(b.mounts)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.main != nil && b.main.exec != nil {
		left.Main = b.main.exec.ID()
	}
	out, err := json.Marshal(left)
	return out, errors.Wrapf(err, "encode a sandbox")
}

// SandboxRestoreV2 implements ModalClient.
func (c *control) SandboxRestoreV2(ctx context.Context,
	req *pb.SandboxRestoreV2Request) (*pb.SandboxRestoreV2Response, error) {
	b, err := c.s.restoreBox(ctx, restoration{req.GetSnapshotId(), req.GetSandboxNameOverrideType(),
		req.GetSandboxNameOverride()})
	if err != nil {
		return nil, err
	}
	sb, err := c.s.opts.Fleet.Get(ctx, b.account, b.id)
	if err != nil {
		return nil, err
	}
	access, err := c.s.routerAccess(ctx, b)
	if err != nil {
		return nil, err
	}
	return pb.SandboxRestoreV2Response_builder{
		SandboxId: b.sandboxID(), TaskId: b.taskID(), Tunnels: tunnelsOf(b), CommandRouterAccess: access,
		Metadata: pb.SandboxHandleMetadata_builder{AppId: appIDOf(sb.Tags[tagEnv], sb.Tags[tagApp])}.Build(),
	}.Build(), nil
}

// SandboxRestore implements ModalClient.
func (c *control) SandboxRestore(ctx context.Context,
	req *pb.SandboxRestoreRequest) (*pb.SandboxRestoreResponse, error) {
	if len(req.GetVolumeMounts()) > 0 {
		err := errors.Newf(errors.Unsupported,
			"a restored sandbox has no volumes: its programs would rely on an outdated state of their files")
		return nil, errors.Remedy(err, "restore it without volumes, or create a sandbox from a snapshot of files")
	}
	b, err := c.s.restoreBox(ctx, restoration{req.GetSnapshotId(), req.GetSandboxNameOverrideType(),
		req.GetSandboxNameOverride()})
	if err != nil {
		return nil, err
	}
	return pb.SandboxRestoreResponse_builder{SandboxId: b.sandboxID()}.Build(), nil
}

// restoration describes a sandbox to create from a memory snapshot.
type restoration struct {
	snapshot string // ID
	naming   pb.SandboxRestoreRequest_SandboxNameOverrideType
	name     string // depends on naming
}

// restoreBox restores a sandbox once for each idempotency key, as createBox does.
func (s *Server) restoreBox(ctx context.Context, r restoration) (*box, error) {
	return s.makeOnce(ctx, "restore", func(ctx context.Context, acc, key string) (*box, error) {
		return s.remakeBox(ctx, acc, r, key)
	})
}

// remakeBox restores the sandbox and finds its command.
func (s *Server) remakeBox(ctx context.Context, acc string, r restoration, key string) (*box, error) {
	c, err := s.memory(ctx, r.snapshot)
	if err != nil {
		return nil, err
	}
	var left remains
	def := &pb.Sandbox{}
	if err = json.Unmarshal(c.Note, &left); err == nil {
		err = proto.Unmarshal(left.Def, def)
	}
	if err != nil {
		return nil, errors.Wrapf(err, "decode the record of an ended sandbox")
	}
	tags, err := r.tags(c.Sandbox.Tags)
	if err != nil {
		return nil, err
	}
	env, name := tags[tagEnv], tags[tagApp]
	if _, err := s.apps.Get(acc, appIDOf(env, name)); err != nil && !apps.Random(name) { // its app may have ended
		return nil, err
	}
	if key != "" {
		tags[tagKey] = key
	}
	if title := tags[tagName]; title != "" {
		s.naming.Lock()
		defer s.naming.Unlock()
		if err := s.free(ctx, acc, env, name, title, ""); err != nil {
			return nil, err
		}
	}
	sb, err := s.opts.Fleet.Restore(ctx, acc, c.ID, fleet.RestoreRequest{Tags: tags})
	if err != nil {
		return nil, err
	}
	b := s.boxes.make(sb)
	b.def = def
	if err := b.goOn(ctx, left); err != nil {
		b.destroyNow(ctx)
		return nil, err
	}
	s.boxes.add(b)
	return b, nil
}

// tags returns the tags of the restored sandbox, with another name if the client requests one.
func (r restoration) tags(before map[string]string) (map[string]string, error) {
	tags := maps.Clone(before)
	delete(tags, tagKey)
	switch r.naming {
	case pb.SandboxRestoreRequest_SANDBOX_NAME_OVERRIDE_TYPE_NONE:
		delete(tags, tagName)
	case pb.SandboxRestoreRequest_SANDBOX_NAME_OVERRIDE_TYPE_STRING:
		if err := checkName("Sandbox", r.name); err != nil {
			return nil, err
		}
		tags[tagName] = r.name
	case pb.SandboxRestoreRequest_SANDBOX_NAME_OVERRIDE_TYPE_UNSPECIFIED:
	}
	return tags, nil
}

// goOn finds the command of a restored sandbox, opens its ports, and records both for a later server.
func (b *box) goOn(ctx context.Context, left remains) error {
	notes := []note{{Def: left.Def}}
	for path, hidden := range left.Mounts {
		b.mounts[path] = hidden
		notes = append(notes, note{Mount: &mounted{Path: path, Hidden: hidden}})
	}
	if left.Main != "" {
		var err error
		if b.main, err = b.attach(ctx, b.id, left.Main, 0, order{terminal: sizeOf(b.def.GetPtyInfo())}); err != nil {
			return err
		}
		notes = append(notes, note{Main: left.Main})
	}
	return b.openPorts(ctx, notes)
}
