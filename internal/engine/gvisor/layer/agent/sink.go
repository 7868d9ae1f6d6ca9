// Package agent reads and fills the writable layers of sandboxes for package layer.
//
// It works within gVisor's process, where files have all their properties: whiteouts, times in nanoseconds,
// arbitrary extended attributes, and the ranges of sparse files. Whiteouts are not visible from inside the
// sandbox. gVisor's own tar of the layer rounds times to seconds, omits attributes that are not UTF-8, and
// reads whole files into memory.
//
// It also limits the files of volumes, reports crashes, names terminals, and makes network namespaces begin as in
// Linux, all of which gVisor does not do.
package agent

import (
	"gvisor.dev/gvisor/pkg/fd"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"

	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
)

// Register makes this process, in which gVisor will run, answer requests. It must be called once, before
// gVisor's code runs.
func Register() {
	a := &agent{ready: make(chan struct{})}
	a.terminals.agent = a
	a.watch()
	replaceRoutes()
	seccheck.RegisterSink(seccheck.SinkDesc{
		Name: layer.SinkName,
		New: func(config map[string]any, file *fd.FD) (seccheck.Sink, error) {
			defer file.Close()
			r, err := layer.Decode(config)
			if err == nil {
				err = a.answer(r, file)
			}
			if err != nil {
				return nil, layer.Mark(err)
			}
			return sink{}, nil
		},
	})
}

// sink receives no trace points.
type sink struct{ seccheck.SinkDefaults }

// Name implements seccheck.Sink.
func (sink) Name() string { return layer.SinkName }
