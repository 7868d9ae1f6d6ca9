package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
)

// maxEvent bounds one line of an event stream.
const maxEvent = 16 << 20

// events posts in and follows the answer's events: progress is told, the event done is decoded into out.
func (c *Client) events(ctx context.Context, path string, in any, progress func(api.Progress), done string, out any) error {
	data, err := json.Marshal(in)
	if err != nil {
		return errors.Explainf(err, errors.Invalid, "the request cannot be written as JSON")
	}
	header := http.Header{"Content-Type": {api.TypeJSON}, "Accept": {api.TypeEvents}}
	resp, err := c.do(ctx, http.MethodPost, path, nil, bytes.NewReader(data), header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	finished := false
	err = readEvents(resp.Body, func(name string, data []byte) error {
		switch name {
		case api.EventProgress:
			var p api.Progress
			if err := json.Unmarshal(data, &p); err != nil || progress == nil {
				return broken(err)
			}
			progress(p)
		case api.EventProblem:
			var p api.Problem
			if err := json.Unmarshal(data, &p); err != nil {
				return broken(err)
			}
			return Error(p)
		case done:
			finished = true
			return broken(json.Unmarshal(data, out))
		}
		return nil
	})
	if err == nil && !finished {
		err = broken(io.ErrUnexpectedEOF)
	}
	return err
}

// readEvents calls each for every server-sent event of r, until it fails or r ends. Comments, ids and unknown fields are
// passed over.
func readEvents(r io.Reader, each func(name string, data []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEvent)
	name, data, some := "", []byte(nil), false
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case lines.Text() == "" && some:
			if err := each(name, data); err != nil {
				return err
			}
			name, data, some = "", nil, false
		case lines.Text() == "":
			name = ""
		case field == "event":
			name = value
		case field == "data":
			if some {
				data = append(data, '\n')
			}
			data, some = append(data, value...), true
		}
	}
	return broken(lines.Err())
}
