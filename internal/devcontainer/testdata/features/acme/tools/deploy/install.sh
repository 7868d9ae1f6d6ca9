#!/bin/sh
set -e
echo "installing deploy"
