package fake

import (
	"context"
	"maps"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/proc"
)

func (sb *sandbox) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	if err := engine.CheckCommand(cmd); err != nil {
		return nil, err
	}
	if err := sb.begin(ctx, OpStart); err != nil {
		return nil, err
	}
	sb.starting.RLock()
	defer sb.starting.RUnlock()
	if end := sb.endOf(); end != nil {
		return nil, errors.Newf(errors.Conflict, "the sandbox has ended: %s", end.Detail)
	}
	sb.mu.Lock()
	d := proc.Defaults{Env: maps.Clone(sb.record.Env), Dir: sb.record.Dir, User: sb.record.User, Host: sb.hostPath}
	sb.mu.Unlock()
	if d.Env == nil {
		return nil, errors.Newf(errors.Conflict, "the sandbox is not claimed yet")
	}
	return sb.table().Start(ctx, cmd, d)
}

func (sb *sandbox) Processes(ctx context.Context) ([]engine.ProcessInfo, error) {
	if err := sb.begin(ctx, OpOpen); err != nil {
		return nil, err
	}
	return sb.table().Processes()
}

func (sb *sandbox) OpenProcess(ctx context.Context, id string, stdio engine.Stdio) (engine.Process, error) {
	if err := sb.begin(ctx, OpOpen); err != nil {
		return nil, err
	}
	return sb.table().Open(ctx, id, stdio)
}
