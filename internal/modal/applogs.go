package modal

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/modal/apps"
)

// follower sends the output of sandboxes of an app, or of one, as it comes.
type follower struct {
	s      *Server
	acc    string
	app    string // ID; "" for one sandbox
	box    string // id of the Fleet, of the one sandbox
	source pb.FileDescriptor
	search string // only lines with it
	stream bool   // follow a stream of one sandbox, up to its end
	at     logCursor
	send   func(*pb.TaskLogsBatch) error
}

// logCursor is how far a client has read. It is in the entry IDs that clients return to continue.
type logCursor struct {
	Until int64               `json:"u,omitempty"` // all output of sandboxes that ended before was sent; in ms
	At    map[string][2]int64 `json:"a,omitempty"` // offsets in standard output and standard error, by sandbox
}

// logPart is the maximum size of one message in bytes, followEvery the interval at which a follower looks for more.
const (
	logPart     = 256 << 10
	followEvery = 200 * time.Millisecond
)

// AppGetLogs implements ModalClient. It follows the logs of an app, of a sandbox or of its task for the given time, and
// reports when they are complete.
func (c *control) AppGetLogs(req *pb.AppGetLogsRequest, stream grpc.ServerStreamingServer[pb.TaskLogsBatch]) error {
	ctx := stream.Context()
	if req.GetFunctionId() != "" || req.GetFunctionCallId() != "" || req.GetInputId() != "" ||
		req.GetParametrizedFunctionId() != "" {
		return errors.Newf(errors.Unsupported, "%s", lacking("FunctionCall"))
	}
	f := &follower{s: c.s, acc: callerOf(ctx).Account, source: req.GetFileDescriptor(),
		search: req.GetSearchText(), send: stream.Send}
	switch {
	case req.GetSandboxId() != "" || req.GetTaskId() != "":
		b, err := c.loggedBox(ctx, req.GetSandboxId(), req.GetTaskId())
		if err != nil {
			return err
		}
		f.box = b.id
	default:
		a, err := c.s.apps.Get(f.acc, req.GetAppId())
		if err != nil {
			return err
		}
		f.app = a.ID
	}
	if err := f.resume(req.GetLastEntryId()); err != nil {
		return err
	}
	return f.follow(ctx, wait(req.GetTimeout()))
}

// resume continues after the last entry that a client has read; "" begins.
func (f *follower) resume(last string) error {
	if last != "" && json.Unmarshal([]byte(last), &f.at) != nil {
		return errors.Newf(errors.Invalid, "last_entry_id: not an entry of these logs")
	}
	return nil
}

// follow sends until all output was sent, or until the time limit.
func (f *follower) follow(ctx context.Context, limit time.Duration) error {
	if f.at.At == nil {
		f.at.At = map[string][2]int64{}
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		over, err := f.over() // before the last look
		if err != nil {
			return err
		}
		ended, err := f.look(ctx)
		if err != nil {
			return err
		}
		if over && ended {
			return f.send(pb.TaskLogsBatch_builder{AppDone: !f.stream, Eof: f.stream, EntryId: f.cursor()}.Build())
		}
		if limit <= 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-f.s.ctx.Done():
			return nil
		}
	}
}

// over reports whether no sandbox will be added.
func (f *follower) over() (bool, error) {
	if f.app == "" {
		return true, nil
	}
	a, err := f.s.apps.Get(f.acc, f.app)
	return a.State == apps.Stopped, err
}

func (f *follower) cursor() string {
	text, err := json.Marshal(f.at)
	if err != nil {
		return "" // cannot be: it has numbers and strings only
	}
	return string(text)
}

// look sends the new output, and reports whether all sandboxes have ended and their output was sent.
func (f *follower) look(ctx context.Context) (ended bool, err error) {
	now := time.Now()
	found, err := f.sandboxes(ctx)
	if err != nil {
		return false, err
	}
	ended = true
	for _, sb := range slices.Backward(found) {
		if f.at.includes(sb) || sb.Status.Ended() && now.Sub(sb.Ended) > remembered {
			delete(f.at.At, sb.ID)
			continue
		}
		b, err := f.s.boxes.get(ctx, f.acc, sb.ID)
		if errors.KindOf(err) == errors.NotFound {
			continue
		}
		if err != nil {
			return false, err
		}
		all, err := f.read(b)
		if err != nil {
			return false, err
		}
		ended = ended && all && (sb.Status.Ended() || f.stream && b.main != nil)
	}
	if ended && !slices.ContainsFunc(found, func(sb record.Sandbox) bool { return !sb.Status.Ended() }) {
		f.at.shorten(found, now)
	}
	return ended, nil
}

// shorten sets Until after a look that began at now and sent all output of the ended sandboxes. It drops the offsets of
// those that Until includes. Sandboxes that ended later, or in the same millisecond, keep theirs.
func (c *logCursor) shorten(ended []record.Sandbox, now time.Time) {
	c.Until = now.UnixMilli()
	for _, sb := range ended {
		if c.includes(sb) {
			delete(c.At, sb.ID)
		}
	}
}

// includes reports whether all output of a sandbox was sent before Until.
func (c *logCursor) includes(sb record.Sandbox) bool {
	return sb.Status.Ended() && sb.Ended.UnixMilli() < c.Until
}

func (f *follower) sandboxes(ctx context.Context) ([]record.Sandbox, error) {
	if f.app != "" {
		return f.s.sandboxesOf(ctx, f.acc, f.app, true)
	}
	sb, err := f.s.opts.Fleet.Get(ctx, f.acc, f.box)
	return []record.Sandbox{sb}, err
}

// read sends the new output of a sandbox's own command, and reports whether nothing follows.
func (f *follower) read(b *box) (last bool, err error) {
	if b.main == nil {
		return true, nil
	}
	last = true
	for i, s := range []*spool{b.main.out, b.main.err} {
		fd := pb.FileDescriptor(i + 1)
		if s == nil || i == 1 && s == b.main.out || f.source != pb.FileDescriptor_FILE_DESCRIPTOR_UNSPECIFIED &&
			f.source != fd {
			continue
		}
		for {
			at := f.at.At[b.id]
			data, start, end, err := s.peek(at[i], logPart)
			if err != nil {
				return false, err
			}
			if !end {
				data = f.whole(data)
			}
			if len(data) == 0 {
				last = last && end
				break
			}
			at[i] = start + int64(len(data))
			f.at.At[b.id] = at
			if err := f.sendText(b, fd, f.matching(string(data)), s.at(start)); err != nil {
				return false, err
			}
		}
	}
	return last, nil
}

// sendText sends output that arrived at a time.
func (f *follower) sendText(b *box, fd pb.FileDescriptor, text string, at time.Time) error {
	if text == "" {
		return nil
	}
	item := pb.TaskLogs_builder{Data: strings.ToValidUTF8(text, "\ufffd"), FileDescriptor: fd,
		Timestamp: seconds(at), TimestampNs: uint64(at.UnixNano())}.Build()
	return f.send(pb.TaskLogsBatch_builder{TaskId: b.taskID(), SandboxId: b.sandboxID(), EntryId: f.cursor(),
		Items: []*pb.TaskLogs{item}}.Build())
}

// matching returns the lines of a text that the client searches.
func (f *follower) matching(text string) string {
	if f.search == "" {
		return text
	}
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, f.search) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// whole returns data without an incomplete character at its end, or without an incomplete line for a search. A line
// that fills a message counts as complete.
func (f *follower) whole(data []byte) []byte {
	if f.search != "" && len(data) < logPart {
		return data[:bytes.LastIndexByte(data, '\n')+1]
	}
	return data[:whole(data)]
}

// whole returns the length of data without an incomplete character at its end.
func whole(data []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		if c := data[len(data)-n]; utf8.RuneStart(c) {
			if !utf8.FullRune(data[len(data)-n:]) {
				return len(data) - n
			}
			break
		}
	}
	return len(data)
}
