// Package inbox serves what waits for a person.
package inbox

import (
	"net/http"
	"strconv"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server/edge"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
)

// Service serves the routes for the inbox of an account. Answers have the route of their session.
type Service struct {
	edge.Settings
	Box    *inbox.Box   // nil: not supported
	Events edge.Handler // follows the events of the inbox
}

// Routes returns one row per route.
func (s *Service) Routes() []edge.Route {
	return edge.Only(s.Box != nil, "an inbox", []edge.Route{
		{Method: "GET", Path: api.Inbox, Handle: s.list, Scope: account.Read,
			Summary: "List what waits for a person: approvals, questions, finished turns, silent agents and logins, " +
				"newest first",
			Query: edge.QueryPage + "; all: also what waits no longer", Out: api.List[api.InboxItem]{}, Status: 200},
		{Method: "GET", Path: api.InboxEvents, Handle: s.Events, Scope: account.Read,
			Summary: "Follow the changes of the inbox: the events inbox.added and inbox.closed, with the item",
			Query: "after: only events after this id, as with the header Last-Event-ID; tail: only the last N " +
				"events, and new ones",
			RawOut: api.TypeEvents, Status: 200},
		{Method: "POST", Path: api.InboxSeen, Handle: s.see, Scope: account.Write,
			Summary: "Mark items that need no answer as seen: by number, those of a session, or all",
			In:      api.InboxSeenRequest{}, Status: 204},
	})
}

func (s *Service) list(w http.ResponseWriter, r *http.Request) error {
	all, err := edge.Flag(r, "all")
	if err != nil {
		return err
	}
	limit, err := edge.Number(r, "limit", api.DefaultPage, api.MaxPage)
	if err != nil {
		return err
	}
	after, err := s.After(r)
	if err != nil {
		return err
	}
	filter := inbox.Filter{Waiting: !all, Limit: limit + 1}
	if after != "" {
		if filter.Before, err = strconv.ParseInt(after, 10, 64); err != nil {
			return errors.Wrapf(err, "a cursor of the inbox")
		}
	}
	found, err := s.Box.Items(r.Context(), edge.Account(r), filter)
	if err != nil {
		return err
	}
	page := api.List[api.InboxItem]{}
	if len(found) > limit {
		found = found[:limit]
		page.NextCursor = s.Cursor(r, strconv.FormatInt(found[limit-1].Number, 10))
	}
	page.Data = edge.Each(found, itemOut)
	return edge.Respond(w, http.StatusOK, page)
}

func (s *Service) see(w http.ResponseWriter, r *http.Request) error {
	var req api.InboxSeenRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	if len(req.Numbers) == 0 && req.Session == "" && !req.All {
		return errors.Remedy(errors.Newf(errors.Invalid, "no item given"), "give numbers, session_id, or all: true")
	}
	return edge.NoContent(w, s.Box.See(r.Context(), edge.Account(r),
		inbox.Selection{Numbers: req.Numbers, Session: req.Session, All: req.All}))
}

func itemOut(i inbox.Item) api.InboxItem {
	out := api.InboxItem{
		ID: i.ID, Number: i.Number, Kind: string(i.Kind), State: string(i.State), Since: i.Since.UTC(),
		Closed: i.Closed.UTC(), Session: i.Session, Title: i.Title, Agent: i.Agent, SubAgent: i.SubAgent,
		What: i.What, Answer: i.Answer, QuestionID: i.QuestionID, Tool: i.Tool, Input: i.Input, Text: i.Text,
		Deadline: i.Deadline.UTC(), Cut: i.Cut, MessageID: i.MessageID, Outcome: i.Outcome, Cost: i.Cost,
		Secret: i.Secret,
	}
	for _, q := range i.Questions {
		asked := api.Question{Text: q.Text, Header: q.Header, Multiple: q.Multiple}
		for _, o := range q.Options {
			asked.Options = append(asked.Options, api.Option(o))
		}
		out.Questions = append(out.Questions, asked)
	}
	return out
}
