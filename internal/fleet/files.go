package fleet

import (
	"context"
	"io"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// Files reads or changes single files of a running sandbox, as described for engine.Filer, and writes the answer to
// w. Watching does not keep a sandbox from becoming idle, nor wake it. Kinds: Invalid, NotFound (sandbox or file),
// Conflict, Denied, Exhausted, Unsupported (the engine has no Filer).
func (f *Fleet) Files(ctx context.Context, account, ref string, req tarfs.Request, w io.Writer) error {
	var p spec.Problems
	spec.CheckPath(&p, req.Path)
	if req.Op == tarfs.OpMove {
		spec.CheckPath(&p, req.To)
	}
	if err := p.Err(); err != nil {
		return errors.Stage(err, "validate")
	}
	if sb, err := f.Get(ctx, account, ref); err == nil && req.Op == tarfs.OpWatch && sb.Status == record.Suspended {
		return sb.RequireStatus(record.Running) // who only watches does not wake it
	}
	_, box, leave, err := f.enter(ctx, account, ref)
	if err != nil {
		return err
	}
	if req.Op == tarfs.OpWatch {
		leave()
	} else {
		defer leave()
	}
	filer, ok := box.(engine.Filer)
	if !ok {
		return errors.Remedy(errors.Newf(errors.Unsupported, "the engine %s does not support single files",
			f.opts.Engine.Name()), "copy archives in and out instead")
	}
	return errors.Stage(filer.Files(ctx, req, w), "files")
}
