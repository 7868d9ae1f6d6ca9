package sandboxes

import (
	"encoding/base64"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/characters"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// outputWriter sends its input as events of one name. Incomplete UTF-8 characters wait for the rest.
type outputWriter struct {
	ev   *edge.Events
	name string
	rest []byte
}

func (o *outputWriter) Write(p []byte) (int, error) {
	all := append(o.rest, p...)
	cut := len(all) - characters.Partial(all)
	o.sendBytes(all[:cut])
	o.rest = append([]byte(nil), all[cut:]...)
	return len(p), nil
}

// flush sends the waiting bytes.
func (o *outputWriter) flush() { o.sendBytes(o.rest) }

func (o *outputWriter) sendBytes(data []byte) {
	switch {
	case len(data) == 0:
	case utf8.Valid(data):
		o.ev.Send(o.name, api.Output{Data: string(data), Encoding: "utf-8"})
	default:
		o.ev.Send(o.name, api.Output{Data: base64.StdEncoding.EncodeToString(data), Encoding: "base64"})
	}
}
