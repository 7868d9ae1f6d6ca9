package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	"github.com/RelevanceAI/harvest/client/api"
)

// CreateSession creates a session. It returns before the session is ready; Events with its ID as Stream report the
// progress.
func (c *Client) CreateSession(ctx context.Context, req api.SessionRequest) (api.Session, error) {
	return ask[api.Session](ctx, c, http.MethodPost, api.Sessions, nil, req)
}

// Upload sends a file ahead of the session that names it as BundleID or PatchID. It reads r once, so it does not retry.
// The upload expires; RemoveUpload removes it earlier. Sessions keep their files.
func (c *Client) Upload(ctx context.Context, r io.Reader) (up api.FileUpload, err error) {
	// With Expect, the server can refuse the request before the file is sent.
	header := http.Header{"Content-Type": {api.TypeBytes}, "Expect": {"100-continue"}}
	resp, err := c.do(ctx, http.MethodPost, api.Uploads, nil, r, header)
	if err != nil {
		return up, err
	}
	defer resp.Body.Close()
	return up, broken(json.NewDecoder(resp.Body).Decode(&up))
}

// RemoveUpload removes a file that was sent ahead.
func (c *Client) RemoveUpload(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Upload, id), nil, nil, nil)
}

// WarmSession announces a session that will probably be created, so that the server can make one like it ahead. It
// sends neither the prompt nor the person's commits.
func (c *Client) WarmSession(ctx context.Context, req api.SessionRequest) error {
	req.Prompt, req.Bundle, req.Shallow, req.Uncommitted, req.Limits = "", nil, nil, nil, api.SessionLimits{}
	req.BundleID = ""
	return c.call(ctx, http.MethodPost, api.SessionsWarm, nil, req, nil)
}

// Sessions returns sessions of the account, newest first.
func (c *Client) Sessions(ctx context.Context, filter api.SessionFilter) ([]api.Session, error) {
	query := url.Values{}
	for name, on := range map[string]bool{"all": filter.All, "archived": filter.Archived, "pinned": filter.Pinned} {
		if on {
			query.Set(name, "true")
		}
	}
	if filter.Text != "" {
		query.Set("q", filter.Text)
	}
	return list[api.Session](ctx, c, api.Sessions, query)
}

// Session returns a session.
func (c *Client) Session(ctx context.Context, ref string) (api.Session, error) {
	return ask[api.Session](ctx, c, http.MethodGet, api.Path(api.Sessioned, ref), nil, nil)
}

// ChangeSession changes a session. Limits hold at once, the other options from the next prompt that the agent gets.
// They are of sessions that have not ended; title, pin and archive are of all.
func (c *Client) ChangeSession(ctx context.Context, ref string, change api.SessionChange) (api.Session, error) {
	return ask[api.Session](ctx, c, http.MethodPatch, api.Path(api.Sessioned, ref), nil, change)
}

// EndSessionKeeping is EndSession, but returns Conflict if changes of the agent would be lost: those that no client has
// taken, and those in submodules, in other work trees and on other branches.
func (c *Client) EndSessionKeeping(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Sessioned, ref), url.Values{"discard": {"false"}}, nil, nil)
}

// EndSession ends a session and its sandbox. It is idempotent.
func (c *Client) EndSession(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Sessioned, ref), nil, nil, nil)
}

// Send queues a prompt.
func (c *Client) Send(ctx context.Context, ref, prompt string) (api.QueuedMessage, error) {
	return ask[api.QueuedMessage](ctx, c, http.MethodPost, api.Path(api.SessionMessages, ref), nil,
		api.MessageRequest{Prompt: prompt})
}

// Messages returns a session's prompts, oldest first.
func (c *Client) Messages(ctx context.Context, ref string) ([]api.Message, error) {
	return list[api.Message](ctx, c, api.Path(api.SessionMessages, ref), nil)
}

// Hold records a prompt that is sent after ReleaseMessages.
func (c *Client) Hold(ctx context.Context, ref, prompt string) (api.QueuedMessage, error) {
	return ask[api.QueuedMessage](ctx, c, http.MethodPost, api.Path(api.SessionMessages, ref), nil,
		api.MessageRequest{Prompt: prompt, Hold: true})
}

// CancelMessage removes a prompt that is queued or held.
func (c *Client) CancelMessage(ctx context.Context, ref, message string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.SessionMessage, ref, message), nil, nil, nil)
}

// StopSession interrupts the current turn.
func (c *Client) StopSession(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodPost, api.Path(api.SessionStop, ref), nil, nil, nil)
}

// SessionMCP lists the MCP servers of a session's agent. The list is empty while no agent runs.
func (c *Client) SessionMCP(ctx context.Context, ref string) ([]api.MCPServer, error) {
	var out api.List[api.MCPServer]
	err := c.call(ctx, http.MethodGet, api.Path(api.SessionMCP, ref), nil, nil, &out)
	return out.Data, err
}

// RestartSessionMCP starts an MCP server of a session's agent again. The event mcp.ready or mcp.failed reports the
// result.
func (c *Client) RestartSessionMCP(ctx context.Context, ref, server string) error {
	return c.call(ctx, http.MethodPost, api.Path(api.SessionMCPRestart, ref, server), nil, nil, nil)
}

// StopSessionHolding is StopSession, but also holds the queued prompts: they are sent after ReleaseMessages.
func (c *Client) StopSessionHolding(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodPost, api.Path(api.SessionStop, ref), url.Values{"hold": {"true"}}, nil, nil)
}

// ReleaseMessages queues a prompt that is held; "" means all of them.
func (c *Client) ReleaseMessages(ctx context.Context, ref, message string) error {
	query := url.Values{}
	if message != "" {
		query.Set("message", message)
	}
	return c.call(ctx, http.MethodPost, api.Path(api.SessionRelease, ref), query, nil, nil)
}

// Answer answers a question of the agent: question is the ID of its event agent.asked.
func (c *Client) Answer(ctx context.Context, ref, question string, answer api.AnswerRequest) error {
	return c.call(ctx, http.MethodPost, api.Path(api.SessionAnswer, ref, question), nil, answer, nil)
}

// Work is the work of an agent. The caller closes it.
type Work struct {
	io.ReadCloser
	Changes string // identifies the changes, for TakenChanges
}

// SessionDiff returns the agent's changes in a repository ("" for the first) as a patch.
func (c *Client) SessionDiff(ctx context.Context, ref, repository string) (*Work, error) {
	return c.work(ctx, api.Path(api.SessionDiff, ref), repository)
}

// TakenChanges records that the caller has the changes of a Work, so that the session can end without a warning.
func (c *Client) TakenChanges(ctx context.Context, ref, repository, changes string) error {
	return c.call(ctx, http.MethodPost, api.Path(api.SessionTaken, ref), nil,
		api.TakenRequest{Repository: repository, Changes: changes}, nil)
}

func (c *Client) work(ctx context.Context, path, repository string) (*Work, error) {
	resp, err := c.do(ctx, http.MethodGet, path, ofRepository(repository), nil, http.Header{})
	if err != nil {
		return nil, err
	}
	return &Work{&checkedBody{resp.Body}, resp.Header.Get(api.HeaderChanges)}, nil
}

// SessionBundle returns the work branch as a git bundle.
func (c *Client) SessionBundle(ctx context.Context, ref, repository string) (*Work, error) {
	return c.work(ctx, api.Path(api.SessionBundle, ref), repository)
}

func ofRepository(name string) url.Values {
	if name == "" {
		return nil
	}
	return url.Values{"repository": {name}}
}

// SyncSession carries the work forward onto upstream commits. If that fails, the repository is unchanged, and the
// response says why: Failed.
func (c *Client) SyncSession(ctx context.Context, ref string, req api.SyncRequest) (api.GitEvent, error) {
	return ask[api.GitEvent](ctx, c, http.MethodPost, api.Path(api.SessionSync, ref), nil, req)
}

// PushSession pushes the work branch to its origin.
func (c *Client) PushSession(ctx context.Context, ref string, req api.PushRequest) (api.GitEvent, error) {
	return ask[api.GitEvent](ctx, c, http.MethodPost, api.Path(api.SessionPush, ref), nil, req)
}

// OpenPull pushes the work branch and opens a pull request for it, or updates it. The agent may take minutes to write
// its text.
func (c *Client) OpenPull(ctx context.Context, ref string, req api.PullRequestRequest) (api.PullRequest, error) {
	return ask[api.PullRequest](ctx, c, http.MethodPost, api.Path(api.SessionPull, ref), nil, req)
}

// download returns the body of a response.
func (c *Client) download(ctx context.Context, path string, query url.Values,
	header http.Header) (io.ReadCloser, error) {
	resp, err := c.do(ctx, http.MethodGet, path, query, nil, header)
	if err != nil {
		return nil, err
	}
	return &checkedBody{resp.Body}, nil
}
