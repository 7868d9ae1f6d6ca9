package mcp

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/RelevanceAI/harvest/client/errors"
)

// The resources.
const (
	scheme      = "harvest://"
	environs    = scheme + "environments"
	fileOf      = scheme + "environments/{environment}/files/{+path}"
	outputOf    = scheme + "environments/{environment}/commands/{command}/output"
	transcripts = scheme + "sessions/{session}/transcript"
)

// maxResource is the size limit of a resource, in bytes.
const maxResource = 1 << 20

// resources are the resources that read what tools name.
type resources struct{ *server }

func (s resources) add(to *sdk.Server) {
	to.AddResource(&sdk.Resource{URI: environs, Name: "environments", Title: "Environments", MIMEType: "text/plain",
		Description: "The environments of the account"}, s.resource)
	for _, t := range []sdk.ResourceTemplate{
		{URITemplate: fileOf, Name: "file", Title: "File",
			Description: "A file of an environment, by its absolute path"},
		{URITemplate: outputOf, Name: "output", Title: "Output of a command", MIMEType: "text/plain",
			Description: "The kept output of a command of an environment"},
		{URITemplate: transcripts, Name: "transcript", Title: "Transcript", MIMEType: "text/plain",
			Description: "The prompts and replies of a session of agent_start"},
	} {
		to.AddResourceTemplate(&t, s.resource)
	}
}

// resource reads a resource.
func (s resources) resource(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	uri := req.Params.URI
	if err := s.ready(ctx); err != nil {
		return nil, errors.Newf(errors.KindOf(err), "%s", failure(err))
	}
	parts := strings.Split(strings.TrimPrefix(uri, scheme), "/")
	for i := range parts {
		plain, err := url.PathUnescape(parts[i])
		if err != nil {
			return nil, sdk.ResourceNotFoundError(uri)
		}
		parts[i] = plain
	}
	var data []byte
	var err error
	media := "text/plain"
	switch {
	case uri == environs:
		var text string
		text, err = s.listText(ctx)
		data = []byte(text)
	case len(parts) > 3 && parts[2] == "files":
		data, err = s.fileResource(ctx, parts[1], strings.Join(parts[3:], "/"))
		media = http.DetectContentType(data)
	case len(parts) == 5 && parts[2] == "commands" && parts[4] == "output":
		data, err = s.outputResource(ctx, parts[1], parts[3])
	case len(parts) == 3 && parts[0] == "sessions" && parts[2] == "transcript":
		data, err = s.transcript(ctx, parts[1])
	default:
		return nil, sdk.ResourceNotFoundError(uri)
	}
	if err != nil {
		if kind := errors.KindOf(err); kind == errors.NotFound || kind == errors.Gone {
			return nil, sdk.ResourceNotFoundError(uri)
		}
		return nil, errors.Newf(errors.KindOf(err), "%s", failure(err))
	}
	content := &sdk.ResourceContents{URI: uri, MIMEType: media}
	if strings.HasPrefix(media, "text/") && bytes.IndexByte(data, 0) < 0 {
		content.Text = strings.ToValidUTF8(string(data), "\uFFFD")
	} else {
		content.Blob = data
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{content}}, nil
}

func (s resources) fileResource(ctx context.Context, environment, name string) ([]byte, error) {
	at, err := s.enter(ctx, environment)
	if err != nil {
		return nil, err
	}
	return s.content(ctx, at, "/"+strings.TrimPrefix(name, "/"), maxResource)
}

func (s resources) outputResource(ctx context.Context, environment, command string) ([]byte, error) {
	at, err := s.enter(ctx, environment)
	if err != nil {
		return nil, err
	}
	found, err := s.process(ctx, at, command)
	if err != nil {
		return nil, err
	}
	w := &window{tail: maxResource, changed: time.Now()}
	if _, _, err := s.look(ctx, at, found, w, func(string) {}, outputIn{}); err != nil {
		return nil, err
	}
	text, notes := w.text(at.name, command)
	if len(notes) > 0 {
		text += "\n[" + strings.Join(notes, "; ") + "]\n"
	}
	return []byte(text), nil
}

// transcript is the conversation of a session, the end of it if it is long.
func (s resources) transcript(ctx context.Context, session string) ([]byte, error) {
	messages, err := s.Client.Messages(ctx, session)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for _, m := range messages {
		fmt.Fprintf(&b, "## Prompt (%s)\n\n%s\n\n## Reply\n\n%s\n\n", m.State, m.Prompt, m.Reply)
	}
	text := b.String()
	if over := len(text) - maxResource; over > 0 {
		text = fmt.Sprintf("… %d bytes left out …\n", over) + text[over:]
	}
	return []byte(text), nil
}
