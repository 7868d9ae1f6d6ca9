package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// maxEvent is the size limit for a line of an event stream.
const maxEvent = 16 << 20

// events posts in and handles the events of the response: it passes progress on, and decodes the event done into out.
func (c *Client) events(ctx context.Context, path string, in any, progress func(api.Progress), done string,
	out any) error {
	data, err := json.Marshal(in)
	if err != nil {
		return errors.Explainf(err, errors.Invalid, "cannot encode the request as JSON")
	}
	return c.follow(ctx, path, bytes.NewReader(data), api.TypeJSON, func(name string, data []byte) (bool, error) {
		switch name {
		case api.EventProgress:
			return false, each(data, progress)
		case done:
			return true, broken(json.Unmarshal(data, out))
		}
		return false, nil
	})
}

// follow posts a body and passes each event of the response to take, which reports whether it was the last one.
func (c *Client) follow(ctx context.Context, path string, body io.Reader, media string,
	take func(name string, data []byte) (bool, error)) error {
	header := http.Header{"Content-Type": {media}, "Accept": {api.TypeEvents}}
	resp, err := c.do(ctx, http.MethodPost, path, nil, body, header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	finished := false
	err = readEvents(resp.Body, func(name string, data []byte) (err error) {
		if name == api.EventProblem {
			var p api.Problem
			if err := json.Unmarshal(data, &p); err != nil {
				return broken(err)
			}
			return Error(p)
		}
		last, err := take(name, data)
		finished = finished || last && err == nil
		return err
	})
	if err == nil && !finished {
		err = broken(io.ErrUnexpectedEOF)
	}
	return err
}

// readEvents is readFrames for events without ids.
func readEvents(r io.Reader, each func(name string, data []byte) error) error {
	return readFrames(r, func(string) error { return nil },
		func(_, name string, data []byte) error { return each(name, data) })
}

// readFrames calls each for every server-sent event of r, until each returns an error or r ends. A frame without data
// is no event: if it has an ID, readFrames calls alone with it. It skips comments and unknown fields.
func readFrames(r io.Reader, alone func(id string) error, each func(id, name string, data []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEvent)
	id, name, data, some := "", "", []byte(nil), false
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case lines.Text() == "" && some:
			if err := each(id, name, data); err != nil {
				return err
			}
			id, name, data, some = "", "", nil, false
		case lines.Text() == "" && id != "":
			if err := alone(id); err != nil {
				return err
			}
			id, name = "", ""
		case lines.Text() == "":
			name = ""
		case field == "id":
			id = value
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
