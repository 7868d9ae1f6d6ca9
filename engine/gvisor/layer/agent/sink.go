// Package agent reads and fills the writable layers of sandboxes for package layer.
//
// It works within gVisor's process, where files have all that they have: whiteouts, times to the nanosecond, any extended
// attribute, the ranges of sparse files. From inside the sandbox whiteouts cannot be seen; gVisor's own tar of the layer rounds
// times to seconds, leaves out attributes that are not UTF-8, and reads whole files into memory.
package agent

import (
	"gvisor.dev/gvisor/pkg/fd"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"

	"github.com/RelevanceAI/harvest/engine/gvisor/layer"
)

// Register makes this process, which is to be gVisor's, one that answers. It is called once, before gVisor's code runs.
func Register() {
	a := &agent{ready: make(chan struct{})}
	a.watch()
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

// sink takes no trace points.
type sink struct{ seccheck.SinkDefaults }

// Name implements seccheck.Sink.
func (sink) Name() string { return layer.SinkName }
