module github.com/RelevanceAI/harvest

go 1.26
